#include "head.h"

#include <algorithm>

#include "packing.h"
#include "pieces.h"
#include "variants.h"

namespace sk {

namespace {

// Tokens of a prompt that are fused at a time, so that what is made on the way stays small.
constexpr int64_t kAbsorbed = 64;

// More than this would not stay in the cache.
constexpr int64_t kMostFetched = 16 << 20;

std::shared_ptr<Fetch> weights_of(const sk_head_model& model) {
    auto fetch = std::make_shared<Fetch>();
    for (const sk_matrix& each : {model.fuse, model.token, model.again}) fetch->add(each.data, matrix_bytes(each));
    for (int32_t i = 0; i < model.layer.layer_count; i++) {
        sk_layer layer = model.layer.layers[i];
        for (const sk_matrix* each : matrices(layer)) fetch->add(each->data, matrix_bytes(*each));
    }
    // Which clusters of the output a step needs is not known before.
    const sk_matrix& scores = model.layer.clusters.rows ? model.layer.clusters : model.layer.output;
    fetch->add(scores.data, matrix_bytes(scores));
    if (int64_t(fetch->chunks.size()) * Fetch::kChunk > kMostFetched) fetch->chunks.clear();
    return fetch;
}

}  // namespace

Head::Head(const sk_head_model& model)
    : TreeDrafter(layer_),
      layer_(model.layer),
      weights_(weights_of(model)),
      fuse_(model.fuse),
      again_(model.again),
      token_(model.token),
      tap_count_(model.tap_count),
      ones_(size_t(model.layer.hidden), 1.0f) {}

void Head::attach(const sk_tables& tables, float* states, const sk_cache& cache) {
    tables_ = tables;
    states_ = states;
    layer_.attach(tables, &cache);
}

std::string Head::fault(int64_t count, const sk_read* read) const {
    if (!states_) return "there is no cache: attach one first";
    for (int64_t i = 0; i < count; i++)
        if (read[i].slot < 0 || read[i].slot >= tables_.slots || read[i].first < 0 || read[i].count < 0 ||
            read[i].first + read[i].count > tables_.width * kCacheBlock)
            return "the place of a token in slot " + std::to_string(read[i].slot) + " is not in the cache";
    return "";
}

std::string Head::fault(const sk_head_step& step) const {
    for (int64_t i = 0; i < step.batch.tokens; i++)
        if (step.sources[i] < -1 || step.sources[i] >= outcomes_)
            return "the source of token " + std::to_string(i) + " was not judged in the step before";
    if (step.batch.tap_count || step.batch.entered) return "a head has no taps, and finds itself what its layer reads";
    return layer_.fault(step.batch);
}

// Root mean square 1.
void Head::norm_plainly(const float* x, float* y) const {
    kernels_->norm(x, ones_.data(), layer_.model().epsilon, layer_.model().hidden, y);
}

void Head::start(int32_t threads) {
    pool_.start(threads);
    kernels_ = &kernels();
}

void Head::absorb(int64_t count, const sk_read* read, int32_t threads) {
    std::lock_guard<std::mutex> lock(pool_.mutex);
    start(threads);
    take_in(count, read);
}

std::string Head::absorb(const sk_round& round) {
    std::vector<sk_read> read;
    const float* tapped = round.tapped;
    const int64_t width = tap_count_ * layer_.model().hidden;
    if (round.tap_count != tap_count_) return "the round has not the hidden states that the head reads";
    for (int64_t r = 0; r < round.rows.count; r++) {
        const sk_row& row = round.rows.rows[r];
        read.push_back({row.slot, row.start, 1, tapped});
        for (int32_t i = 0; i < row.accepted; i++)
            read.push_back({row.slot, row.start + 1 + i, 1, tapped + row.path[i] * width});
        tapped += (row.count + 1) * width;
    }
    std::string wrong = fault(int64_t(read.size()), read.data());
    if (wrong.empty()) absorb(int64_t(read.size()), read.data(), round.rows.threads);
    return wrong;
}

// Tokens of several slots together, so that the weights are read once for all of them.
void Head::take_in(int64_t count, const sk_read* read) {
    const int64_t width = tap_count_ * layer_.model().hidden;
    std::vector<const float*> from;
    std::vector<float*> to;
    for (int64_t i = 0; i < count; i++)
        for (int64_t t = 0; t < read[i].count; t++) {
            from.push_back(read[i].tapped + t * width);
            to.push_back(state(read[i].slot, read[i].first + int32_t(t)));
            if (int64_t(to.size()) == kAbsorbed) fuse(from, to);
        }
    fuse(from, to);
}

// States from the target's hidden states of some tokens; the lists are empty afterwards.
void Head::fuse(std::vector<const float*>& from, std::vector<float*>& to) {
    const int64_t hidden = layer_.model().hidden, some = int64_t(to.size());
    if (!some) return;
    tapped_.reserve(some, tap_count_ * hidden);
    fused_.reserve(some * hidden);
    each_token(pool_, some, [&](int64_t t) {
        for (int64_t i = 0; i < tap_count_; i++)
            norm_plainly(from[size_t(t)] + i * hidden, tapped_.token(t) + i * hidden);
        if (is_quantized(fuse_.format)) tapped_.quantize(*kernels_, t);
    });
    const Inputs inputs = tapped_.inputs();
    each_panels(pool_, panels(hidden), [&](int64_t first, int64_t last, int) {
        kernels_->linear(fuse_, inputs, first, last, 0, some, nullptr, false, fused_.get() + first * kPanel, hidden);
    });
    for (int64_t t = 0; t < some; t++) {
        const float* fused = fused_.get() + t * hidden;
        std::copy(fused, fused + hidden, to[size_t(t)]);
    }
    from.clear();
    to.clear();
}

// What the layer reads: a state of the target's or of the head's own making, and the token's embedding.
void Head::enter(const sk_head_step& step) {
    const int64_t count = step.batch.tokens, hidden = layer_.model().hidden;
    embedded_.reserve(count, hidden);
    before_.reserve(count, hidden);
    float* entered = entered_.reserve(count * hidden);
    bool drafted = false;
    for (int64_t t = 0; t < count; t++) drafted |= step.sources[t] >= 0;
    each_token(pool_, count, [&](int64_t t) {
        float* embedding = embedded_.token(t);
        unpack_row(layer_.model().embedding, step.batch.ids[t], embedding);
        norm_plainly(embedding, embedding);
        if (is_quantized(token_.format)) embedded_.quantize(*kernels_, t);
        if (!drafted) return;
        const float* outcome = layer_.judged(std::max(step.sources[t], 0));
        std::copy(outcome, outcome + hidden, before_.token(t));
        if (is_quantized(again_.format)) before_.quantize(*kernels_, t);
    });
    const Inputs embedded = embedded_.inputs(), before = before_.inputs();
    each_panels(pool_, panels(hidden), [&](int64_t from, int64_t to, int) {
        float* out = entered + from * kPanel;
        if (drafted) kernels_->linear(again_, before, from, to, 0, count, nullptr, false, out, hidden);
        for (int64_t t = 0; t < count; t++)
            if (step.sources[t] < 0) {
                const float* known = state(step.batch.slots[t], step.batch.columns[t]) + from * kPanel;
                std::copy(known, known + (to - from) * kPanel, out + t * hidden);
            }
        kernels_->linear(token_, embedded, from, to, 0, count, nullptr, true, out, hidden);
    });
}

std::string Head::prepare(const sk_growing& growing) {
    std::string wrong = fault(growing.read_count, growing.read);
    if (!wrong.empty()) return wrong;
    kernels_ = &kernels();
    take_in(growing.read_count, growing.read);
    return "";
}

std::string Head::score(const sk_head_step& step) {
    std::string wrong = fault(step);
    if (!wrong.empty()) return wrong;
    this->step(step);
    // The next pass of the target leaves nothing of these weights in the caches.
    pool_.will_fetch(weights_);
    return "";
}

void Head::run(const sk_head_step& step) {
    std::lock_guard<std::mutex> lock(pool_.mutex);
    start(step.batch.threads);
    this->step(step);
}

void Head::step(const sk_head_step& step) {
    enter(step);
    sk_batch batch = step.batch;
    batch.entered = entered_.get();
    layer_.pass(batch);
    outcomes_ = batch.judged_count;
}

}  // namespace sk
