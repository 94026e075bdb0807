// A block drafter: one pass scores all positions of a draft (DFlash, Chen et al. 2026; DSpark, Cheng et al. 2026).
#pragma once
#include <stdint.h>

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
    void enter_fuse(const float* tapped, float* out) const override;
    void store(float* fused, const Places& tokens) override;
    std::string prepare(const sk_growing& growing) override;
    std::string score(const sk_head_step& step) override;
    void correct(int64_t branches, float* shares) override;
    std::string pass(const sk_batch& batch);
    void find_biases(std::vector<int64_t> tokens);
    std::vector<int64_t> likely_tokens();
    float confidence(int64_t row, int64_t token);

    sk_block_model model_;
    const int64_t* known_ = nullptr;  // as `sk_growing` has it
    std::vector<int64_t> first_rows_;  // by slot, of `base_`
    int64_t rows_ = 0;
    Buffer<float> base_;  // [rows, vocabulary], logits of all positions of all blocks, without biases
    std::vector<float> confidences_;  // of the places scored last
    // Biases by token, and passes over their weights since the last block.
    std::unordered_map<int64_t, const float*> biases_;
    std::vector<Buffer<float>> bias_memory_;
    size_t bias_passes_ = 0;
    Activations previous_;
};

}  // namespace sk
