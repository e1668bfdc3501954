# run
a=(one two three); declare -A m=([k]=v); echo "${a[@]^^} ${m[k]} ${#a[@]} ${a[1]//o/0}"
diff <(seq 5) <(seq 4); echo "diff $?"; coproc C { cat; }; echo through >&"${C[1]}"; read -r l <&"${C[0]}"; echo "$l"; eval "exec ${C[1]}>&-"; wait
trap 'echo trapped' USR1; kill -USR1 $$; (trap 'echo in subshell' EXIT); f() { local x=$1; [ "$x" -le 0 ] || f $((x - 1)); }; f 200
exec 7</etc/passwd 8>copy; cat <&7 >&8; exec 7<&- 8>&-; cmp copy /etc/passwd && echo copied; cat <<EOF | tr a-z A-Z
here $((6 * 7))
EOF
for i in 1 2 3 4 5; do (exit $i) & pids+=($!); done; for p in "${pids[@]}"; do wait "$p"; echo -n "$? "; done; echo
ulimit -n 64; exec 63>high; echo x >&63; exec 63>&-; cat high
x=$(printf '%s\n' {1..5000} | while read -r n; do echo $((n * 2)); done | tail -1); echo "$x"; type -t cd; shopt -s extglob; echo "${x##+(1)}"
/bin/sh -c 'kill -TERM $$'; echo "signal $?"; mapfile -t lines < /etc/passwd; ((${#lines[@]} > 5)) && echo many; printf '%q\n' "a b"; bash -c 'exec true'; echo $?
