// Distributions over a vocabulary: drawing from them, and judging drafts by them.
#pragma once
#include <stdint.h>

#include <string>

#include "activations.h"
#include "api.h"
#include "kernels.h"

namespace sk {

// A distribution up to a factor. Its bits depend on the logits and the settings alone.
class Distribution {
   public:
    // The standardised distribution of logits [size] at a position of the text of this seed; false where one is not a
    // number, and nothing has any weight then.
    bool standardise(const Kernels& kernels, const float* logits, int64_t size, const sk_sampling& sampling, uint64_t seed,
                     int64_t position);

    // Scales the weights to probabilities.
    void normalise();

    // `standardise`, as probabilities, which `out` [size] gets too.
    bool standardise_into(const Kernels& kernels, const float* logits, int64_t size, const sk_sampling& sampling, uint64_t seed,
                          int64_t position, float* out);

    // Draws a token and takes its weight away; -1 where nothing has any.
    int64_t take(double u);

    // Weights that are known; they are copied.
    void assign(const Kernels& kernels, const float* weights, int64_t size);

    double total() const { return total_; }
    float share(int64_t token) const { return float(double(weights_.get()[token]) / total_); }
    float* weights() { return weights_.get(); }

    // To be called after weights were changed: all of them, or that of one token.
    void sum_again();
    void sum_again(int64_t token);

    // Inverts the cumulative sum, tokens in the order of their numbers; never a token without weight. The total is
    // above 0, u in [0, 1).
    int64_t draw(double u) const;

   private:
    void filter(const float* logits, float most, float factor, const sk_sampling& sampling);
    float edge(const float* logits, float most, float factor, const sk_sampling& sampling) const;
    void exclude_top_choices(double threshold);
    void add_up();

    const Kernels* kernels_ = nullptr;
    int64_t size_ = 0;
    double total_ = 0;
    Buffer<float> weights_, sums_;  // [size], and per kBestBlock of them
};

// What is wrong with the drafts of rows, or nothing.
std::string drafting_fault(const sk_rows& rows);

// Verdicts of the rows that are not held.
void judge(const sk_rows& rows);

}  // namespace sk
