# needs awk gawk
# run
seq 1 20000 | awk '{ s += $1; a[$1 % 7]++ } END { print s, a[0], a[6] }'
awk 'BEGIN { while (("echo x; echo y" | getline l) > 0) n = n l; print n; printf "%d\n", system("exit 3"); print toupper("abc") | "cat" }'
awk -F: '$3 == 0 { print $1 > "out" } END { close("out"); while ((getline l < "out") > 0) print l }' /etc/passwd
seq 1 20000 | gawk '{ a[$1 % 97] += $1 } END { PROCINFO["sorted_in"] = "@ind_num_asc"; for (i in a) print i, a[i] }' | md5sum
gawk 'BEGIN { c = "sort -n"; print "3\n1\n2" |& c; close(c, "to"); while ((c |& getline l) > 0) print l; print strftime("%Y", 0, 1) }'
