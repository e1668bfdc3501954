# needs tar gzip
# run
mkdir -p d/e; seq 10000 > d/a; seq 5 > d/e/b; ln -s a d/l; chmod 640 d/a; truncate -s 1M d/hole
tar --sort=name --mtime=@0 --owner=0 --group=0 -cSzf x.tgz d; tar tzf x.tgz; gzip -l x.tgz | wc -l
mkdir out; tar xzf x.tgz -C out; diff -r d out/d && echo same; tar df x.tgz 2>&1 | grep -v 'Mod time\|Uid\|Gid'; cat d/a | gzip -9 | gunzip | cmp - d/a && echo unzipped
