// A whole decoder that drafts for another one.
#pragma once
#include <string>
#include <vector>

#include "tree_drafter.h"

namespace sk {

class DraftModel : public TreeDrafter {
   public:
    explicit DraftModel(Decoder& decoder) : TreeDrafter(decoder), decoder_(decoder) {}

    // Keeps what it has read of the accepted branch in the columns after the text.
    std::string follow(const sk_round& round, const std::vector<std::vector<int64_t>>& emitted) override;

   private:
    std::string score(const sk_head_step& step) override;

    Decoder& decoder_;
};

}  // namespace sk
