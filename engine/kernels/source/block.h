// A block drafter: one pass scores all positions of a draft (DFlash and DFlash 2, Chen et al. 2026; DSpark, Cheng et al. 2026).
#pragma once
#include <stdint.h>

#include <algorithm>
#include <string>
#include <unordered_map>
#include <vector>

#include "state_drafter.h"

namespace sk {

class Block : public StateDrafter {
   public:
    // Copies what `model` points to, but neither weights, norms nor tables.
    explicit Block(const sk_block_model& model);

    void attach(const sk_tables& tables, float* states, const sk_cache* caches) override;

   private:
    // A row of the blocks, [blocks, positions], after a token.
    struct Following {
        int64_t row, token;
    };

    void enter_fuse(const float* tapped, float* out) const override;
    void store(float* fused, const Places& tokens) override;
    std::string prepare(const sk_growing& growing) override;
    std::string score(const sk_head_step& step) override;
    void correct(int64_t branches, float* shares) override;
    std::string pass(const sk_batch& lasts);
    sk_batch rows(int64_t first, int64_t last);
    void note_scores(const sk_batch& batch, int64_t first, int64_t last);
    void find_factors(int64_t count);
    void multiply(const sk_matrix& matrix, Activations& in, int64_t count, const float* bias, float* out);
    void find_biases(std::vector<Following> places);
    std::vector<Following> likely_places(const sk_batch& lasts) const;
    void bias_of(const Following& at, float* logits) const;
    void choose(const Following& at, float* logits) const;
    float confidence(const Following& at) const;

    // Positions of a draft.
    int64_t positions() const { return model_.size - model_.first; }
    // Likeliest tokens of a row that are noted.
    int64_t noted() const { return std::max(model_.candidates, 1); }
    // Places with equal biases have the same number.
    int64_t number(const Following& at) const {
        return (model_.factor.rows ? at.row : 0) * model_.previous.rows + at.token;
    }

    sk_block_model model_;
    const int64_t* known_ = nullptr;  // as `sk_growing` has it
    Places block_;                    // of all rows that draft
    std::vector<int64_t> blocks_;     // by slot, the number of its block
    int64_t count_ = 0;               // of blocks
    int64_t expected_;                // positions that are scored with the blocks
    int64_t scored_ = 0, deepest_ = 0;  // of this draft: positions that have been scored, and the last one needed
    Buffer<float> first_logits_, later_logits_;  // [blocks, positions, vocabulary] of the expected positions, and of the rest
    std::vector<const float*> logits_;           // of every row, [blocks, positions], without biases
    std::vector<double> confidences_;            // of every row, what its state adds to the logit
    std::vector<int32_t> likely_;                // of every row, its likeliest tokens without biases
    std::vector<float> factors_;                 // of every row, of the row of `previous`
    std::vector<float> chances_;                 // of the places scored last
    // Biases by number, and passes over their weights since the last block.
    std::unordered_map<int64_t, const float*> biases_;
    std::vector<Buffer<float>> bias_memory_;
    size_t bias_passes_ = 0;
    Activations previous_, states_;
    Buffer<float> products_;
    std::vector<Buffer<float>> scratch_;  // of each thread
};

}  // namespace sk
