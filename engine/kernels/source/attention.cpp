// The attention of a layer: projections, rotary embedding, writing to the cache, attention, and the output projection.
#include <string.h>

#include <algorithm>

#include "decoder.h"
#include "pieces.h"

namespace sk {

namespace {

// Copies a column of a block of one head to another.
void copy_column(const sk_cache& cache, int64_t size, int64_t block, int64_t column, int64_t to_block, int64_t to_column) {
    const auto copy = [&](auto* keys, auto* values) {
        for (int64_t d = 0; d < size; d++)
            keys[(to_block * size + d) * kCacheBlock + to_column] = keys[(block * size + d) * kCacheBlock + column];
        std::copy_n(values + (block * kCacheBlock + column) * size, size, values + (to_block * kCacheBlock + to_column) * size);
    };
    if (!cache.key_scales) return copy((uint16_t*)cache.keys, (uint16_t*)cache.values);
    copy((int8_t*)cache.keys, (int8_t*)cache.values);
    for (float* scales : {cache.key_scales, cache.value_scales})
        scales[to_block * kCacheBlock + to_column] = scales[block * kCacheBlock + column];
}

}  // namespace

// Queries, keys, values and gates of all tokens. A piece of an attention layer has whole heads, and its thread applies
// norm and rotary embedding and writes the cache: the heads are in the cache of its core.
void Decoder::project(const sk_layer& layer, int32_t index, const sk_batch& batch) {
    const struct {
        const sk_matrix& matrix;
        const float* bias;
        float* out;
        void (Decoder::*finish)(const sk_layer&, int32_t, const sk_batch&, int64_t head);
    } parts[] = {{layer.query, layer.query_bias, queries_.get(), &Decoder::finish_query},
                 {layer.key, layer.key_bias, keys_new_.get(), &Decoder::finish_key},
                 {layer.value, layer.value_bias, values_new_.get(), &Decoder::finish_value},
                 {layer.mixer_gate, nullptr, gates_.get(), nullptr}};
    const bool attention = layer.mixer == SK_ATTENTION;
    const int64_t unit = attention ? layer.head_size / kPanel : 1;  // panels that belong together
    int64_t total = 0;
    for (const auto& part : parts) total += panels(part.matrix.rows) / unit;
    const int64_t share = panels_per_piece(pool_, total);
    const Inputs inputs = normed_.inputs();
    auto piece = [&](int64_t i, int) {
        int64_t first = i * share, last = std::min(total, first + share);
        for (const auto& part : parts) {
            const int64_t own = panels(part.matrix.rows) / unit, to = std::min(last, own);
            if (first < to)
                kernels_->linear(part.matrix, inputs, first * unit, to * unit, 0, tokens_, part.bias, false,
                                 part.out + first * unit * kPanel, part.matrix.rows);
            for (int64_t head = first; attention && part.finish && head < to; head++)
                (this->*part.finish)(layer, index, batch, head);
            first = std::max<int64_t>(first - own, 0);
            last -= own;
            if (last <= 0) break;
        }
    };
    pool_.each((total + share - 1) / share, piece);
}

void Decoder::norm_and_rotate(const sk_layer& layer, const float* head_norm, int64_t position, float* values) {
    const sk_rope& rope = ropes_[size_t(layer.rope)];
    if (head_norm) kernels_->norm(values, head_norm, model_.epsilon, layer.head_size, values);
    kernels_->rotate(values, rope.cosines + position * rope.pairs, rope.sines + position * rope.pairs, rope.pairs);
}

void Decoder::finish_query(const sk_layer& layer, int32_t, const sk_batch& batch, int64_t head) {
    const float* scales = ropes_[size_t(layer.rope)].query_scales;
    for (int64_t t = 0; t < tokens_; t++) {
        float* query = queries_.get() + t * layer.query.rows + head * layer.head_size;
        norm_and_rotate(layer, layer.query_norm, batch.positions[t], query);
        kernels_->scale(query, layer.head_size, model_.attention_scale * (scales ? scales[batch.positions[t]] : 1.0f));
    }
}

void Decoder::finish_key(const sk_layer& layer, int32_t index, const sk_batch& batch, int64_t head) {
    for (const CacheRun& run : runs_)
        for (int64_t t = run.first; t < run.first + run.count; t++) {
            float* key = keys_new_.get() + t * layer.key.rows + head * layer.head_size;
            if (!layer.value.rows) {
                float* value = values_new_.get() + t * layer.key.rows + head * layer.head_size;
                memcpy(value, key, size_t(layer.head_size) * sizeof(float));
                store_value(layer, index, run.block * layer.key_heads + head, batch.columns[t] % kCacheBlock, value);
            }
            norm_and_rotate(layer, layer.key_norm, batch.positions[t], key);
            store_key(layer, index, run.block * layer.key_heads + head, batch.columns[t] % kCacheBlock, key);
        }
}

void Decoder::finish_value(const sk_layer& layer, int32_t index, const sk_batch& batch, int64_t head) {
    for (const CacheRun& run : runs_)
        for (int64_t t = run.first; t < run.first + run.count; t++)
            store_value(layer, index, run.block * layer.key_heads + head, batch.columns[t] % kCacheBlock,
                        values_new_.get() + t * layer.value.rows + head * layer.head_size);
}

// Writes a column of a block of one key head, which is spread over the whole block.
void Decoder::store_key(const sk_layer& layer, int32_t index, int64_t block, int64_t column, const float* key) {
    const sk_cache& cache = caches_[size_t(index)];
    const int64_t size = layer.head_size;
    const auto spread = [&](const auto* from, auto* keys) {
        for (int64_t d = 0; d < size; d++) keys[block * kCacheBlock * size + d * kCacheBlock + column] = from[d];
    };
    if (cache.key_scales) {
        int8_t codes[kLargestHead];
        cache.key_scales[block * kCacheBlock + column] = kernels_->compress(key, size, codes);
        spread(codes, (int8_t*)cache.keys);
    } else {
        uint16_t halves[kLargestHead];
        kernels_->halve(key, size, halves);
        spread(halves, (uint16_t*)cache.keys);
    }
}

void Decoder::store_value(const sk_layer& layer, int32_t index, int64_t block, int64_t column, float* value) {
    const sk_cache& cache = caches_[size_t(index)];
    const int64_t size = layer.head_size, place = block * kCacheBlock + column;
    if (layer.value_norm) kernels_->norm(value, layer.value_norm, model_.epsilon, size, value);
    if (cache.key_scales)
        cache.value_scales[place] = kernels_->compress(value, size, (int8_t*)cache.values + place * size);
    else
        kernels_->halve(value, size, (uint16_t*)cache.values + place * size);
}

std::string Decoder::move(int32_t slot, const int32_t* sources, int64_t count, int32_t target) {
    const int64_t columns = int64_t(tables_.width) * kCacheBlock;
    for (int64_t i = 0; i < count; i++)
        if (slot < 0 || slot >= tables_.slots || target < 0 || sources[i] < target + i || sources[i] >= columns)
            return "a column that is moved is not in the cache, or before its target";
    for (int32_t l = 0; l < model_.layer_count; l++) {
        const sk_layer& layer = layers_[size_t(l)];
        const sk_cache& cache = caches_[size_t(l)];
        if (layer.mixer != SK_ATTENTION || layer.source != l) continue;
        for (int64_t i = 0; i < count; i++)
            for (int64_t h = 0; h < layer.key_heads; h++) {
                const auto head = [&](int64_t column) { return block_of(tables_, slot, column) * layer.key_heads + h; };
                const int64_t from = sources[i], to = target + i;
                copy_column(cache, layer.head_size, head(from), from % kCacheBlock, head(to), to % kCacheBlock);
            }
    }
    return "";
}

// What a piece of attention is about, for the query heads of one key head.
Attention Decoder::attention_of(const sk_layer& layer, const sk_batch& batch, const AttentionPiece& piece,
                                int64_t key_head) const {
    const int64_t size = layer.head_size, key_heads = layer.key_heads, heads = model_.heads / key_heads;
    const Row& row = rows_[size_t(piece.row)];
    const sk_cache& cache = caches_[size_t(layer.source)];
    const int64_t first = key_head * kCacheBlock * size * (cache.key_scales ? 1 : 2);
    Attention task{};
    task.keys = (const char*)cache.keys + first;
    task.values = (const char*)cache.values + first;
    if (cache.key_scales) {
        task.key_scales = cache.key_scales + key_head * kCacheBlock;
        task.value_scales = cache.value_scales + key_head * kCacheBlock;
    }
    task.blocks = row.table;
    task.block_count = (row.end + kCacheBlock - 1) / kCacheBlock;
    task.scale_stride = key_heads * kCacheBlock;
    task.block_stride = task.scale_stride * size;
    task.queries = queries_.get() + key_head * heads * size;
    task.query_stride = model_.heads * size;
    task.heads = heads;
    task.head_size = size;
    task.tokens = order_.data() + piece.first;
    task.count = piece.count;
    task.own_first = row.own_first;
    task.own_count = row.own_last - row.own_first + 1;
    task.positions = batch.positions;
    task.lasts = layer.sees_later ? lasts_.data() : batch.positions;
    task.columns = batch.columns;
    task.prefixes = batch.prefixes;
    task.placed = layer.sees_later ? ends_.data() : placed_.data();
    task.ancestor_offsets = batch.ancestor_offsets;
    task.ancestors = batch.ancestors;
    task.sinks = layer.sinks ? layer.sinks + key_head * heads : nullptr;
    task.window = layer.window;
    task.cap = model_.attention_cap;
    task.first_block = piece.first_block;
    task.last_block = piece.last_block;
    task.head_stride = most_states_ * state_size(size);
    task.token_stride = model_.heads * task.head_stride;
    task.states = partial_.get() + key_head * heads * task.head_stride + piece.state * state_size(size);
    return task;
}

// Pieces of a key head are adjacent, so that mostly one thread reads its keys and values.
void Decoder::attend(const sk_layer& layer, const sk_batch& batch) {
    const int64_t heads = model_.heads / layer.key_heads, count = int64_t(pieces_.size());
    attended_.reserve(tokens_, model_.heads * layer.head_size);
    auto piece = [&](int64_t i, int thread) {
        const AttentionPiece& work = pieces_[size_t(i % count)];
        Attention task = attention_of(layer, batch, work, i / count);
        task.scratch = scratch_[size_t(thread)].get();
        kernels_->attend(task);
        if (work.first_block) return;  // of a row's later tokens
        for (int64_t k = work.first; k < work.first + work.count; k++)
            if (is_whole(layer, order_[size_t(k)])) merge(layer, order_[size_t(k)], i / count * heads, heads);
    };
    pool_.each(count * layer.key_heads, piece);
}

// Whether a token's attention over a key head is one piece, from block 0 on, whose heads are whole groups for
// quantisation.
bool Decoder::is_whole(const sk_layer& layer, int64_t t) const {
    return states_count_[size_t(t)] == 1 && model_.heads / layer.key_heads * layer.head_size % kGroup == 0;
}

// The output of some heads of a token from their partial softmaxes, gated and quantised for the output projection.
void Decoder::merge(const sk_layer& layer, int64_t t, int64_t first, int64_t count) {
    const int64_t size = layer.head_size, stride = most_states_ * state_size(size);
    float* out = attended_.token(t);
    for (int64_t h = first; h < first + count; h++)
        kernels_->merge(partial_.get() + (t * model_.heads + h) * stride, states_count_[size_t(t)], size, out + h * size);
    if (const int64_t gates = layer.mixer_gate.rows)
        kernels_->gate(SK_SIGMOID, gates_.get() + t * gates + first * size, out + first * size, count * size,
                       out + first * size);
    if (wants_codes(layer.output)) attended_.quantize(*kernels_, t, first * size, (first + count) * size);
}

void Decoder::attention_out(const sk_layer& layer) {
    each_token(pool_, tokens_, [&](int64_t t) {
        if (!is_whole(layer, t)) merge(layer, t, 0, model_.heads);
    });
    add_projection(layer.output, layer.output_bias, attended_, layer.attention_out_norm, layer.attention_conv_base);
}

}  // namespace sk
