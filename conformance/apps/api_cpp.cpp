// The header from C++17: the types work as types, and a program runs.
#include "../../include/smc.h"
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <type_traits>

static_assert(std::is_standard_layout_v<smc_map_attr> && std::is_trivial_v<smc_config>);
static_assert(std::is_same_v<decltype(smc_release(nullptr, 0, 0, 0)), smc_status>);

namespace {
struct Unmap {
    void operator()(smc_region *r) const { smc_unmap(r); }
};
using Region = std::unique_ptr<smc_region, Unmap>;

int fail(const char *what) {
    char text[512];
    smc_last_error(text, sizeof text);
    std::fprintf(stderr, "%s: %s\n", what, text);
    return 1;
}
} // namespace

int main(int, char **argv) {
    smc_context *ctx = nullptr;
    smc_export_t *exported = nullptr;
    smc_peer *host = nullptr;
    const std::string name = argv[1];
    smc_export_attr attr{};
    attr.struct_size = sizeof attr;
    attr.name = name.c_str();
    attr.length = 8192;
    attr.access = SMC_ACCESS_READ_WRITE;
    if (smc_init(nullptr, &ctx) != SMC_STATUS_OK) return fail("smc_init");
    if (smc_export(ctx, &attr, &exported)) return fail("smc_export");
    if (smc_connect(ctx, nullptr, &host)) return fail("smc_connect");
    {
        smc_map_attr how{};
        how.struct_size = sizeof how;
        how.policy = SMC_POLICY_LINE;
        smc_region *raw = nullptr;
        if (smc_map(host, name.c_str(), &how, &raw)) return fail("smc_map");
        Region region(raw);
        std::strcpy(static_cast<char *>(smc_address(raw)), "hello");
        bool swapped = false;
        if (smc_compare_swap(raw, 4096, 0, 7, &swapped, nullptr) || !swapped) return fail("smc_compare_swap");
    }
    auto *home = static_cast<const char *>(smc_export_address(exported));
    if (std::strcmp(home, "hello") != 0 || home[4096] != 7) return 2;
    int names = 0;
    auto count = [](const smc_region_info *, void *user) -> int32_t { return ++*static_cast<int *>(user), 0; };
    if (smc_list(host, count, &names) || names < 1) return fail("smc_list");
    if (smc_peer_close(host) || smc_unexport(exported) || smc_shutdown(ctx)) return fail("close");
    return 0;
}
