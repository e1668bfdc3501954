# needs make gcc
# run
for i in $(seq 20); do echo "int f$i(void) { return $i; }" > "f$i.c"; done
printf 'SRC := $(sort $(wildcard f*.c))\nOBJ := $(SRC:.c=.o)\nall: lib.a sub\nlib.a: $(OBJ)\n\t@ar rcs $@ $^ && echo archived $(words $^)\n%%.o: %%.c\n\t@gcc -c -o $@ $<\nsub:\n\t@$(MAKE) -s -f sub.mk\n.PHONY: all sub\n' > Makefile
printf 'all: ; @echo sub $(shell echo shell) $(MAKELEVEL)\n' > sub.mk
make -s -j4 2>&1 | sort; make -n 2>&1 | grep -c gcc; make nothing; echo $?
