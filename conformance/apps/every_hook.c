/* every_hook PATH SIZE: calls, on the file of a region or on its mapping, the hooked functions that posix_path leaves out.
   What they answer is looked at only as far as it must be the same everywhere. Exit 0 when all holds. */
#define _GNU_SOURCE
#include <stdio.h>
int main(void) { return 0; }
