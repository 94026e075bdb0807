// Bias and penalties, which change logits by what the text before has.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include <utility>
#include <vector>

#include "api.h"

namespace sk {

// Logits of all `size` tokens of the vocabulary, or of the tokens of a draft vocabulary.
struct Scored {
    float* logits;
    int64_t size;
    const int64_t* tokens = nullptr;  // of the logits; null: all
    const int64_t* places = nullptr;  // [size], index of each token in `tokens`, any for others

    float* of(int64_t token) const {
        if (!tokens) return logits + token;
        return tokens[places[token]] == token ? logits + places[token] : nullptr;
    }
};

class Penalties {
   public:
    // Changes logits after a row's text and a path of accepted tokens, with the bits of `engine.sampling.penalties`:
    // bias, repetition, presence and frequency penalty, DRY.
    void apply(const sk_penalties& penalties, const std::vector<int64_t>& path, const Scored& scored);

   private:
    template <typename Change>
    void each_distinct(int64_t first, Change change);
    void discourage_repetitions();
    int64_t token(int64_t place) const { return place < all_->count ? all_->text[place] : (*path_)[size_t(place - all_->count)]; }
    bool breaks(int64_t token) const { return token >= scored_.size || all_->breaks[token]; }
    int64_t length() const { return all_->count + int64_t(path_->size()); }

    const sk_penalties* all_ = nullptr;
    const std::vector<int64_t>* path_ = nullptr;
    Scored scored_{};  // a prompt may have tokens beyond its size
    std::vector<uint32_t> seen_;  // by token, the last call of `each_distinct` that has met it
    uint32_t calls_ = 0;
    std::vector<std::pair<int64_t, int64_t>> repeated_;  // tokens and the lengths that they would repeat
};

// Adds tokens to the text.
void extend(sk_penalties& penalties, const std::vector<int64_t>& tokens);

}  // namespace sk
