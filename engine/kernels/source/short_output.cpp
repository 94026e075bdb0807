// An output layer in short codes: all tokens are scored with them, and the likeliest ones again with the layer itself.
#include <algorithm>
#include <numeric>

#include "decoder.h"
#include "pieces.h"

namespace sk {

namespace {

// Panels of a judged token that are scored again. For a 4-bit copy of the default model's 8-bit layer this makes the sum of
// min(p, q) 0.97 instead of 0.91, and the likeliest token that of the layer itself in 1,200 of 1,200 places.
constexpr int64_t kScoredAgain = 8;
constexpr int64_t kBlockPanels = kBestBlock / kPanel;

// The places with the largest values come first, `count` of them.
void find_largest(std::vector<int32_t>& places, const std::vector<float>& values, int64_t count) {
    if (int64_t(places.size()) <= count) return;
    std::nth_element(places.begin(), places.begin() + count, places.end(), [&](int32_t a, int32_t b) {
        return values[size_t(a)] > values[size_t(b)] || (values[size_t(a)] == values[size_t(b)] && a < b);
    });
    places.resize(size_t(count));
}

}  // namespace

// The panels with the largest logits are in the blocks with the largest logits.
void Decoder::score_likeliest(const sk_batch& batch) {
    const int64_t size = model_.vocabulary;
    const Inputs inputs = judged_.inputs();
    auto piece = [&](int64_t j, int) {
        float* logits = batch.logits + j * size;
        std::vector<float> most(size_t((size + kBestBlock - 1) / kBestBlock)), most_of_panels(size_t(panels(size)));
        int32_t likeliest;
        kernels_->best(logits, size, 1, most.data(), &likeliest, nullptr);
        if (likeliest < 0) return;  // a logit is not a number
        std::vector<int32_t> blocks(most.size()), chosen;
        std::iota(blocks.begin(), blocks.end(), 0);
        find_largest(blocks, most, kScoredAgain);
        for (int64_t block : blocks)
            for (int64_t p = block * kBlockPanels; p < std::min((block + 1) * kBlockPanels, panels(size)); p++) {
                const float *first = logits + p * kPanel, *end = logits + std::min(size, (p + 1) * kPanel);
                most_of_panels[size_t(p)] = *std::max_element(first, end);
                chosen.push_back(int32_t(p));
            }
        find_largest(chosen, most_of_panels, kScoredAgain);
        for (int64_t p : chosen) {
            float* own = logits + p * kPanel;
            kernels_->linear(model_.exact, inputs, p, p + 1, j, j + 1, nullptr, false, own, size);
            finish_logits(own, std::min(kPanel, size - p * kPanel));
        }
    };
    pool_.each(batch.judged_count, piece);
}

}  // namespace sk
