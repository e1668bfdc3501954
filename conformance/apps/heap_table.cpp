// Every way to get memory, every interesting size: what comes of it, one line each. With an argument only sizes that can be
// had, for valgrind.
#include <malloc.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

enum class By { Malloc, NewOne, NewMany, NewAligned };

struct Way {
    const char *name;
    void *(*get)(std::size_t);
    By by;
};

struct alignas(128) Block { char bytes[128]; };
static volatile std::size_t one = 1;

static const Way ways[] = {
    {"malloc", [](std::size_t n) { return malloc(n); }, By::Malloc},
    {"calloc", [](std::size_t n) { return calloc(n, one); }, By::Malloc},
    {"realloc", [](std::size_t n) { return realloc(nullptr, n); }, By::Malloc},
    {"reallocarray", [](std::size_t n) { return reallocarray(nullptr, n, one); }, By::Malloc},
    {"posix_memalign", [](std::size_t n) { void *p = nullptr; errno = posix_memalign(&p, 64, n); return errno ? nullptr : p; }, By::Malloc},
    {"aligned_alloc", [](std::size_t n) { return aligned_alloc(64, n); }, By::Malloc},
    {"memalign", [](std::size_t n) { return memalign(64, n); }, By::Malloc},
    {"valloc", [](std::size_t n) { return valloc(n); }, By::Malloc},
    {"pvalloc", [](std::size_t n) { return pvalloc(n); }, By::Malloc},
    {"new", [](std::size_t n) { return ::operator new(n, std::nothrow); }, By::NewOne},
    {"new[]", [](std::size_t n) { return ::operator new[](n, std::nothrow); }, By::NewMany},
    {"new aligned", [](std::size_t n) { return ::operator new(n, std::align_val_t(256), std::nothrow); }, By::NewAligned},
};

static void give_back(const Way &w, void *p) {
    switch (w.by) {
    case By::Malloc: free(p); break;
    case By::NewOne: ::operator delete(p); break;
    case By::NewMany: ::operator delete[](p); break;
    case By::NewAligned: ::operator delete(p, std::align_val_t(256)); break;
    }
}

static void row(const Way &w, std::size_t n) {
    errno = 0;
    void *p = w.get(n);
    int after = errno;
    std::printf("%s %zu: %s errno %d", w.name, n, p ? "memory" : "none", after);
    if (p && n < 1 << 30) {
        std::memset(p, 7, n);
        bool enough = malloc_usable_size(p) >= n;
        // What malloc gave may go on through realloc, both ways.
        if (w.by == By::Malloc && n > 0) {
            char *q = static_cast<char *>(realloc(p, 3 * n));
            bool kept = q && q[0] == 7 && q[n - 1] == 7;
            p = realloc(q, n / 2 + 1);
            kept = kept && p && static_cast<char *>(p)[n / 2] == 7;
            std::printf(" realloc %d", kept);
        }
        std::printf(" usable %d", enough);
    }
    errno = 4711;
    give_back(w, p);
    std::printf(" kept errno %d\n", errno);
}

static void libc_allocates() {
    char *line = nullptr, *text = nullptr;
    std::size_t room = 0;
    FILE *f = fopen("/proc/self/status", "r");
    bool read = f && getline(&line, &room, f) > 0;
    if (f) fclose(f);
    bool printed = asprintf(&text, "%s and %d", "text", 7) == 10;
    char *copy = strdup(text), *part = strndup(copy, 4), *here = get_current_dir_name();
    std::printf("getline %d asprintf %d strdup %d strndup %d cwd %d\n", read, printed, copy && !strcmp(copy, text), part && !strcmp(part, "text"), here && *here == '/');
    free(line), free(text), free(copy), free(part), free(here);
}

int main(int argc, char **) {
    static volatile std::size_t beyond = static_cast<std::size_t>(PTRDIFF_MAX) + 1;
    const std::size_t sizes[] = {0, 1, 4095, 4096, 4097, 2 << 20, beyond};
    for (const Way &w : ways)
        for (std::size_t n : sizes)
            // Nor does valgrind know pvalloc.
            if (argc == 1 || (n != beyond && std::strcmp(w.name, "pvalloc") != 0)) row(w, n);
    // A throwing new.
    try {
        if (argc == 1) std::printf("%p\n", ::operator new(beyond));
    } catch (const std::bad_alloc &) {
        std::puts("bad_alloc");
    }
    Block *many = new Block[3]();
    std::printf("new Block[] aligned %d\n", reinterpret_cast<std::uintptr_t>(many) % 128 == 0);
    delete[] many;
    libc_allocates();
    return 0;
}
