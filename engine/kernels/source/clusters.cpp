// An output layer whose rows come cluster by cluster: a token gets the logits of its likeliest clusters alone, as in the
// assistants of Gemma 4.
#include <algorithm>
#include <limits>
#include <numeric>

#include "decoder.h"
#include "pieces.h"

namespace sk {

void Decoder::score_clusters(const sk_batch& batch) {
    choose_clusters(batch.judged_count);
    const int64_t scored = model_.clusters_scored, size = panels(model_.vocabulary) / model_.clusters.rows;
    const int64_t total = batch.judged_count * scored, share = panels_per_piece(pool_, total);
    const Inputs inputs = judged_.inputs();
    std::fill(batch.logits, batch.logits + batch.judged_count * model_.vocabulary, kNotScored);
    auto piece = [&](int64_t i, int) {
        for (int64_t k = i * share; k < std::min(total, (i + 1) * share); k++) {
            const int64_t t = k / scored, first = size * chosen_[size_t(t * model_.clusters.rows + k % scored)];
            kernels_->linear(model_.output, inputs, first, first + size, t, t + 1, nullptr, false,
                             batch.logits + t * model_.vocabulary + first * kPanel, model_.vocabulary);
        }
    };
    pool_.each((total + share - 1) / share, piece);
}

// The likeliest clusters of each judged token, in the order of their rows, at the beginning of its part of `chosen_`.
void Decoder::choose_clusters(int64_t count) {
    const int64_t clusters = model_.clusters.rows, scored = model_.clusters_scored;
    const Inputs inputs = judged_.inputs();
    float* scores = clusters_.reserve(count * clusters);
    each_panels(pool_, panels(clusters), [&](int64_t first, int64_t last, int) {
        kernels_->linear(model_.clusters, inputs, first, last, 0, count, nullptr, false, scores + first * kPanel, clusters);
    });
    for (int64_t i = 0; i < count * clusters; i++)  // sorting needs numbers
        if (scores[i] != scores[i]) scores[i] = -std::numeric_limits<float>::infinity();
    chosen_.resize(size_t(count * clusters));
    each_token(pool_, count, [&](int64_t t) {
        int32_t* own = chosen_.data() + t * clusters;
        const float* of = scores + t * clusters;
        std::iota(own, own + clusters, 0);
        std::nth_element(own, own + scored - 1, own + clusters,
                         [of](int32_t a, int32_t b) { return of[a] > of[b] || (of[a] == of[b] && a < b); });
        std::sort(own, own + scored);
    });
}

}  // namespace sk
