// The AMX instructions that the kernels use, in plain C++, after the operation sections of Intel's manual (Intel 64 and
// IA-32 Architectures Software Developer's Manual, volume 2). What raises an exception there ends the program here.
//
// With SPECCHAT_WRONG_TILES in the environment every product is wrong by one in a lane.
#pragma once
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <atomic>

namespace emulated {

constexpr int kTiles = 8, kRows = 16, kRowBytes = 64;

struct Tile {
    int rows, row_bytes;
    uint8_t data[kRows][kRowBytes];
};

struct State {
    bool configured = false;
    Tile tiles[kTiles];
};

inline thread_local State state;
inline std::atomic<int> threads_with_tiles{0}, products{0};

[[noreturn]] inline void fault(const char* what) {
    fprintf(stderr, "emulated tiles: %s\n", what);
    abort();
}

inline void require(bool met, const char* what) {
    if (!met) fault(what);
}

inline Tile& tile(int number) {
    require(state.configured, "a tile is used before a configuration is loaded");
    require(number >= 0 && number < kTiles, "there is no such tile");
    require(state.tiles[number].rows > 0, "a tile is used that is not configured");
    return state.tiles[number];
}

inline void release() {
    if (state.configured) threads_with_tiles--;
    state = State{};
}

inline void load_configuration(const void* memory) {
    const uint8_t* bytes = static_cast<const uint8_t*>(memory);
    if (bytes[0] == 0) return release();
    require(bytes[0] == 1 && bytes[1] == 0, "a palette other than 1, or a start row");
    for (int i = 2; i < 16; i++) require(bytes[i] == 0, "a reserved byte is not zero");
    for (int i = 32; i < 48; i++) require(bytes[i] == 0, "a row length of a tile beyond the palette");
    for (int i = 56; i < 64; i++) require(bytes[i] == 0, "rows of a tile beyond the palette");
    if (!state.configured) threads_with_tiles++;
    state = State{};
    state.configured = true;
    for (int i = 0; i < kTiles; i++) {
        uint16_t row_bytes;
        memcpy(&row_bytes, bytes + 16 + 2 * i, 2);
        const int rows = bytes[48 + i];
        require(row_bytes <= kRowBytes && rows <= kRows, "a tile is too large");
        require((row_bytes == 0) == (rows == 0), "a tile has rows or columns alone");
        state.tiles[i].rows = rows;
        state.tiles[i].row_bytes = row_bytes;
    }
}

inline void zero(int number) { memset(tile(number).data, 0, sizeof(Tile::data)); }

inline void load(int number, const void* memory, int64_t stride) {
    Tile& into = tile(number);
    zero(number);
    for (int row = 0; row < into.rows; row++)
        memcpy(into.data[row], static_cast<const uint8_t*>(memory) + row * stride, size_t(into.row_bytes));
}

inline void store(int number, void* memory, int64_t stride) {
    const Tile& from = tile(number);
    for (int row = 0; row < from.rows; row++)
        memcpy(static_cast<uint8_t*>(memory) + row * stride, from.data[row], size_t(from.row_bytes));
}

// TDPBSSD: signed bytes by signed bytes, four of them added to each 32-bit lane.
inline void multiply_signed(int sums, int left, int right) {
    Tile &c = tile(sums), &a = tile(left), &b = tile(right);
    require(sums != left && sums != right && left != right, "a tile is an operand twice");
    require(c.rows == a.rows && a.row_bytes / 4 == b.rows && c.row_bytes == b.row_bytes, "tiles do not fit");
    require(a.row_bytes % 4 == 0 && b.row_bytes % 4 == 0, "rows are not whole lanes");
    static const bool wrong = getenv("SPECCHAT_WRONG_TILES") != nullptr;
    for (int m = 0; m < c.rows; m++)
        for (int n = 0; n < c.row_bytes / 4; n++) {
            int32_t sum;
            memcpy(&sum, c.data[m] + 4 * n, 4);
            for (int k = 0; k < a.row_bytes; k++) sum += int8_t(a.data[m][k]) * int8_t(b.data[k / 4][4 * n + k % 4]);
            if (wrong && m == 3 && n == 7) sum++;
            memcpy(c.data[m] + 4 * n, &sum, 4);
        }
    products++;
}

}  // namespace emulated

extern "C" __attribute__((visibility("default"))) int emulated_threads_with_tiles() {
    return emulated::threads_with_tiles;
}
extern "C" __attribute__((visibility("default"))) int emulated_products() { return emulated::products; }

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbssd
#define _tile_loadconfig emulated::load_configuration
#define _tile_release emulated::release
#define _tile_zero emulated::zero
#define _tile_loadd emulated::load
#define _tile_stored emulated::store
#define _tile_dpbssd emulated::multiply_signed
