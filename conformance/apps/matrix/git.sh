# needs git
# run
export HOME=$PWD GIT_AUTHOR_DATE='2001-01-01T00:00:00Z' GIT_COMMITTER_DATE='2001-01-01T00:00:00Z' GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b GIT_CONFIG_NOSYSTEM=1
git -c init.defaultBranch=main init -q r && cd r && for i in $(seq 50); do echo "$i" > "f$i"; done && git add . && git commit -qm one && seq 20000 > big && git add big && git commit -qm two
git log --oneline --stat | tail -3; git checkout -qb side HEAD~1 && echo x > f1 && git commit -qam side && git checkout -q main && git merge -q side -m merge && git log --oneline | wc -l
git gc -q && git fsck 2>/dev/null; git clone -q . ../c && git -C ../c rev-parse HEAD; git grep -c 9 -- f9; git diff HEAD~1 --stat | tail -1; git archive HEAD f1 | tar tf -; git blame -s f1; git status --short
