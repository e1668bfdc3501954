# needs go gcc
export GOCACHE=$PWD/cache GOFLAGS=-mod=mod HOME=$PWD
cat > prog.go <<'EOF'
package main
/*
#include <stdlib.h>
static int twice(int x) { char *p = malloc(100); free(p); return 2 * x; }
*/
import "C"
import ("fmt"; "os/exec"; "runtime"; "sync")
func main() {
    var w sync.WaitGroup; sums := make([]int, 50)
    for i := range sums { w.Add(1); go func(i int) { defer w.Done(); b := make([]byte, 1<<16); for j := range b { b[j] = byte(i) }; for _, x := range b { sums[i] += int(x) }; runtime.Gosched() }(i) }
    w.Wait(); runtime.GC(); t := 0; for _, s := range sums { t += s }
    func() { defer func() { fmt.Println("recovered:", recover()) }(); var p *int; *p = 1 }()
    out, err := exec.Command("echo", "child").Output(); fmt.Println(t, C.twice(21), string(out), err)
}
EOF
sed '/^\/\*/,/^import "C"/d; s/C.twice(21)/42/' prog.go > static.go
go build -o prog prog.go && CGO_ENABLED=0 go build -o static static.go && rm -rf cache
# run
./prog; echo $?; ./static; echo $?
