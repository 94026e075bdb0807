// Bias and penalties, which change logits by what the text before has.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include <utility>
#include <vector>

#include "api.h"

namespace sk {

class Penalties {
   public:
    // Changes logits [size] after a row's text and a path of accepted tokens, with the bits of
    // `engine.sampling.penalties`: bias, repetition, presence and frequency penalty, DRY.
    void apply(const sk_penalties& penalties, const std::vector<int64_t>& path, int64_t size, float* logits);

   private:
    template <typename Change>
    void each_distinct(int64_t first, Change change);
    void discourage_repetitions(float* logits);
    int64_t token(int64_t place) const { return place < all_->count ? all_->text[place] : (*path_)[size_t(place - all_->count)]; }
    bool breaks(int64_t token) const { return token >= size_ || all_->breaks[token]; }
    int64_t length() const { return all_->count + int64_t(path_->size()); }

    const sk_penalties* all_ = nullptr;
    const std::vector<int64_t>* path_ = nullptr;
    int64_t size_ = 0;  // a prompt may have tokens beyond, which have no logit
    std::vector<uint32_t> seen_;  // by token, the last call of `each_distinct` that has met it
    uint32_t calls_ = 0;
    std::vector<std::pair<int64_t, int64_t>> repeated_;  // tokens and the lengths that they would repeat
};

// Whether a token is among the drafted ones of which it is not known whether they break repetitions.
bool lacks_breaks(const sk_row& row);

}  // namespace sk
