// The operations that every instruction set implements, with the same bits: `kernels.inc` holds them once, written with
// the sixteen-lane vectors of vector_*.h, and variant_*.cpp compiles it for each.
#pragma once
#include <stdint.h>

#include "api.h"
#include "layout.h"

namespace sk {

// Activations of some tokens, [tokens, columns]: as floats, and quantised per token and group of 32 columns.
struct Inputs {
    const float* floats;
    const int8_t* codes;
    const float* scales;    // [tokens, columns / 32]
    const float* sums;      // [tokens, columns / 32]: scale times the total of the codes
    const int32_t* totals;  // [tokens, columns / 16]: totals of the codes
    int64_t columns;
};

constexpr int64_t kKeyBlock = 128;
constexpr int64_t kCacheBlock = 32;  // columns of a block of the cache, a divisor of kKeyBlock

// What one piece of work on attention is about: some tokens that see the same blocks of keys, one key head.
struct Attention {
    const void *keys, *values;  // [head_size][kCacheBlock] and [kCacheBlock][head_size] of this key head, in the first
                                // block of the cache: as `sk_cache` has them
    const float *key_scales, *value_scales;  // [kCacheBlock] of it; null of float16
    int64_t block_stride, scale_stride;      // values and scales from one block to the next
    const int32_t* blocks;          // [block_count], of the positions of these tokens
    int64_t block_count;
    const float* queries;  // of the pass's first token and this key head, rotated and scaled
    int64_t query_stride;  // floats from one token to the next
    int64_t heads;         // query heads that share the key head
    int64_t head_size;
    const int32_t* tokens;  // [count], of the pass
    int64_t count;
    int64_t own_first, own_count;  // columns of the tokens of the same slot, and of their ancestors
    const int32_t *positions, *columns, *prefixes;
    const int32_t* lasts;   // of each token: the last position that it sees
    const int32_t* placed;  // of each token: positions before this one are in columns of the same number
    const int32_t *ancestor_offsets, *ancestors;
    const float* sinks;  // of the heads; null for none
    int64_t window;      // 0 for none
    float cap;           // of the scores; 0 for none
    int64_t first_block, last_block;  // blocks of kKeyBlock positions, the last one exclusive
    float* scratch;                   // attention_scratch(...) floats
    // Output, of the pass's first token and this key head: from block 0 on one state, else one per block.
    float* states;
    int64_t token_stride, head_stride;
};

constexpr int64_t kLargestHead = 512, kLargestQueryTile = 16;

// A softmax under way: [largest score, sum of exponentials, 14 unused, weighted values [head_size]].
static constexpr int64_t state_size(int64_t head_size) { return 16 + head_size; }

// Scores and a state of every query of a tile, and scores of the pass's own columns.
static constexpr int64_t attention_scratch(int64_t own_count, int64_t head_size) {
    return kLargestQueryTile * (kKeyBlock + state_size(head_size) + own_count + 32);
}

// What one piece of work on a delta net or a state space model is about: some columns of the state S of one head, for the
// tokens of a slot.
struct DeltaRule {
    float* state;                      // the stored state [key_size][stride], at the first column
    int64_t stride, key_size, width;   // width: columns, a multiple of 16 up to kDeltaColumns
    int64_t base, commit, start, end;  // the stored state has read `base` tokens, and `commit` afterwards; the pass reads
                                       // the positions `start` to `end` - 1
    const float* updates;              // of the slot, a ring of `ring` rows of `update` floats
    int64_t ring, update;
    int64_t key_at, delta_at, decay_at;  // of this head in an update
    const float *queries, *keys;         // of the first token, of a delta net normalised
    float* values;                       // in: values; out: deltas
    int64_t token_stride;                // of the three
    const float *decays, *betas;  // betas: null where the values are deltas already, and outputs are added to `out`
    int64_t factor_stride;  // of both
    float* out;
    int64_t out_stride;
    float* scratch;  // [key_size][width]
};

constexpr int64_t kDeltaColumns = 64;

// Values that `best` compares, and that sums over a row are made of.
constexpr int64_t kBestBlock = 128;

struct Kernels {
    const char* name;
    // y [tokens, ...]: panels `first` to `last` - 1 of W applied to tokens `from` to `to` - 1; y is where the first
    // panel's first row of token `from` goes. With `add` the outcome is added to what y holds.
    void (*linear)(const sk_matrix& w, const Inputs& x, int64_t first, int64_t last, int64_t from, int64_t to,
                   const float* bias, bool add, float* y, int64_t stride);
    // One token's activations, or a part of them: columns is a multiple of 32.
    void (*quantize)(const float* x, int64_t columns, int8_t* codes, float* scales, float* sums, int32_t* totals);
    // y = x / sqrt(mean(x²) + epsilon) · weight; size is a multiple of 16, y may be x.
    void (*norm)(const float* x, const float* weight, float epsilon, int64_t size, float* y);
    void (*add)(float* x, const float* y, int64_t size);
    // y = activation(gate) · up; sizes are rounded up to 16 in all three.
    void (*gate)(int32_t activation, const float* gate, const float* up, int64_t size, float* y);
    // One token of a convolution of each channel by itself: y = bias + the sum of inputs[j] · weights[j] over the taps,
    // or the silu of that.
    void (*convolve)(const float* const* inputs, const float* weights, const float* bias, int64_t taps, int64_t size,
                     bool with_silu, float* y);
    // x = cap · tanh(x / cap)
    void (*cap)(float* x, int64_t size, float cap);
    void (*rotate)(float* x, const float* cosines, const float* sines, int64_t pairs);
    void (*scale)(float* x, int64_t size, float factor);
    void (*halve)(const float* x, int64_t size, uint16_t* y);
    // codes = x / scale, the largest 127; returns the scale, NaN where x has something that is not a finite number.
    float (*compress)(const float* x, int64_t size, int8_t* codes);
    void (*attend)(const Attention& work);
    // The states of one query [count][state_size] in the order of their keys, to its outcome [head_size]; the first one
    // changes.
    void (*merge)(float* states, int64_t count, int64_t head_size, float* out);
    // Where the `count` largest of x are, the largest first, of equal ones the first; -1 where x has something that is
    // not a number. Their shares of the softmax, if not null. `scratch` has a float per kBestBlock.
    void (*best)(const float* x, int64_t size, int64_t count, float* scratch, int32_t* places, float* shares);
    // weights = e^((x - largest) · factor); the largest of x, NaN where x has something that is not a number.
    float (*weigh)(const float* x, int64_t size, float factor, float* weights);
    // Weights become 0 where x < edge, or (x - largest) · factor < least.
    void (*cut)(const float* x, int64_t size, float edge, float largest, float factor, float least, float* weights);
    void (*multiply_by)(float* x, int64_t size, float factor);
    // The sum of every kBestBlock values.
    void (*sum_blocks)(const float* x, int64_t size, float* sums);
    // Gated delta rule (Yang, Kautz and Hatamizadeh 2024, "Gated Delta Networks"), token by token; without its correction
    // the state update of Mamba-2 (Dao and Gu 2024, "Transformers are SSMs").
    void (*delta_rule)(const DeltaRule& work);
};

const Kernels& scalar_kernels();
const Kernels* avx2_kernels();    // null where this build has none
const Kernels* avx512_kernels();
const Kernels* neon_kernels();
const Kernels* amx_kernels();

}  // namespace sk
