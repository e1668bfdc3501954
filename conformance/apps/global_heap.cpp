// Objects outside every function that allocate before main and free after it, an exception among them.
#include <cstdio>
#include <map>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

struct Table {
    std::map<std::string, std::vector<int>> rows;
    Table() {
        for (int i = 0; i < 200; i++) rows["row " + std::to_string(i)].assign(i, i);
        try {
            throw std::runtime_error(std::string(1000, 'x'));
        } catch (const std::exception &e) {
            rows["thrown"].assign(1, static_cast<int>(std::string(e.what()).size()));
        }
    }
    ~Table() { std::printf("gone with %zu rows\n", rows.size()); }
};

struct alignas(256) Wide { char bytes[256]; };

static Table table;
static std::string text(100000, 'y');
static std::unique_ptr<Wide> wide(new Wide());
static thread_local std::string own(500, 'z');

int main() {
    std::size_t seen = 0;
    std::thread([&] { seen = own.size(); }).join();
    bool aligned = reinterpret_cast<std::size_t>(wide.get()) % alignof(Wide) == 0;
    std::printf("%zu %d %zu %zu %d\n", table.rows.size(), table.rows["thrown"][0], text.size(), seen, aligned);
    return 0;
}
