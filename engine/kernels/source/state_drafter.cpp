#include "state_drafter.h"

#include "packing.h"
#include "pieces.h"
#include "variants.h"

namespace sk {

namespace {

// Tokens of a prompt that are fused at a time, so that what is made on the way stays small.
constexpr int64_t kAbsorbed = 64;

// More than this would not stay in the cache.
constexpr int64_t kMostFetched = 16 << 20;

std::shared_ptr<Fetch> weights_of(const sk_model& model, const sk_matrix& fuse, const std::vector<sk_matrix>& others) {
    auto fetch = std::make_shared<Fetch>();
    fetch->add(fuse.data, matrix_bytes(fuse));
    for (const sk_matrix& each : others) fetch->add(each.data, matrix_bytes(each));
    for (int32_t i = 0; i < model.layer_count; i++) {
        sk_layer layer = model.layers[i];
        for (const sk_matrix* each : matrices(layer)) fetch->add(each->data, matrix_bytes(*each));
    }
    // Which clusters of the output a step needs is not known before.
    const sk_matrix& scores = model.clusters.rows ? model.clusters : model.output;
    fetch->add(scores.data, matrix_bytes(scores));
    if (int64_t(fetch->chunks.size()) * Fetch::kChunk > kMostFetched) fetch->chunks.clear();
    return fetch;
}

}  // namespace

StateDrafter::StateDrafter(const sk_model& model, const sk_matrix& fuse, int64_t tap_count,
                           const std::vector<sk_matrix>& others)
    : TreeDrafter(layers_), layers_(model), tap_count_(tap_count), fuse_(fuse), weights_(weights_of(model, fuse, others)) {}

std::string StateDrafter::fault(int64_t count, const sk_read* read) const {
    if (!tables_.blocks) return "there is no cache: attach one first";
    for (int64_t i = 0; i < count; i++)
        if (read[i].slot < 0 || read[i].slot >= tables_.slots || read[i].first < 0 || read[i].count < 0 ||
            read[i].first + read[i].count > tables_.width * kCacheBlock)
            return "the place of a token in slot " + std::to_string(read[i].slot) + " is not in the cache";
    return "";
}

void StateDrafter::start(int32_t threads) {
    pool_.start(threads);
    kernels_ = &kernels();
}

void StateDrafter::absorb(int64_t count, const sk_read* read, int32_t threads) {
    std::lock_guard<std::mutex> lock(pool_.mutex);
    start(threads);
    take_in(count, read);
}

std::string StateDrafter::absorb(const sk_round& round) {
    std::vector<sk_read> read;
    const float* tapped = round.tapped;
    const int64_t width = tap_count_ * layers_.model().hidden;
    if (round.tap_count != tap_count_) return "the round has not the hidden states that the drafter reads";
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

std::string StateDrafter::prepare(const sk_growing& growing) {
    std::string wrong = fault(growing.read_count, growing.read);
    if (!wrong.empty()) return wrong;
    kernels_ = &kernels();
    take_in(growing.read_count, growing.read);
    return "";
}

// Tokens of several slots together, so that the weights are read once for all of them.
void StateDrafter::take_in(int64_t count, const sk_read* read) {
    const int64_t width = tap_count_ * layers_.model().hidden;
    std::vector<const float*> from;
    Places tokens;
    const auto flush = [&] {
        if (!from.empty()) store(fuse(from), tokens);
        from.clear();
        tokens.clear();
    };
    for (int64_t i = 0; i < count; i++)
        for (int64_t t = 0; t < read[i].count; t++) {
            const int32_t column = read[i].first + int32_t(t);
            from.push_back(read[i].tapped + t * width);
            tokens.add(0, read[i].slot, column, column, column);
            if (int64_t(from.size()) == kAbsorbed) flush();
        }
    flush();
}

float* StateDrafter::fuse(const std::vector<const float*>& from) {
    const int64_t hidden = layers_.model().hidden, some = int64_t(from.size());
    tapped_.reserve(some, tap_count_ * hidden);
    float* out = fused_.reserve(some * hidden);
    each_token(pool_, some, [&](int64_t t) {
        enter_fuse(from[size_t(t)], tapped_.token(t));
        if (is_quantized(fuse_.format)) tapped_.quantize(*kernels_, t);
    });
    const Inputs inputs = tapped_.inputs();
    each_panels(pool_, panels(hidden), [&](int64_t first, int64_t last, int) {
        kernels_->linear(fuse_, inputs, first, last, 0, some, nullptr, false, out + first * kPanel, hidden);
    });
    return out;
}

}  // namespace sk
