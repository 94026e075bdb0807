// A round of speculative decoding: drafts, one pass over all of them, and their verdicts.
#pragma once
#include <string>
#include <vector>

#include "activations.h"
#include "api.h"
#include "decoder.h"
#include "places.h"
#include "tree_drafter.h"

namespace sk {

// Drafts of all rows, by a network if it is not null; what is wrong, or nothing.
std::string grow(TreeDrafter* drafter, sk_growing& growing);

class Round {
   public:
    // What is wrong, or nothing; `drafter`, which may be null, grows drafts.
    std::string run(Decoder& decoder, TreeDrafter* drafter, sk_round& round);

   private:
    std::string grow(TreeDrafter* drafter, sk_round& round);
    void place(const sk_row& row, int64_t most);

    Places places_;
    std::vector<int32_t> path_;
    Buffer<float> logits_;  // [nodes, vocabulary]
    Buffer<float> tapped_;  // [nodes, taps, hidden]
    Buffer<int32_t> best_;  // [nodes, best_count]
};

}  // namespace sk
