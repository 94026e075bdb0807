// Several rounds in one call. A pass evicts the caller's code and data from the processor's caches: its work for some
// rounds takes less time together than between passes.
#pragma once
#include <string>
#include <vector>

#include "api.h"
#include "decoder.h"
#include "round.h"
#include "tree_drafter.h"

namespace sk {

class Rounds {
   public:
    // `round` runs each of them, `drafter` may be null, `ends` are the tokens that end a reply.
    Rounds(Decoder& decoder, TreeDrafter* drafter, Round& round, const int64_t* ends, int64_t end_count)
        : decoder_(decoder), drafter_(drafter), round_(round), ends_(ends, ends + end_count) {}

    // As `sk_rounds_run`; what is wrong, or nothing.
    std::string run(sk_round* rounds, int64_t count, int64_t& ran);

   private:
    bool is_last(const sk_round& round);
    std::string prepare(sk_round& next, const sk_round& before);
    std::string keep(const sk_row& row);

    Decoder& decoder_;
    TreeDrafter* drafter_;
    Round& round_;
    std::vector<int64_t> ends_;
    std::vector<std::vector<int64_t>> emitted_;  // by each row, in the last round
};

}  // namespace sk
