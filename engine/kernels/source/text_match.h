// What a text that repeats is likely to continue with, as `engine.drafters.suffix` has it.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include <utility>
#include <vector>

namespace sk {

// The longest suffix of a text that occurred before, and what followed it.
class TextMatch {
   public:
    TextMatch(const int64_t* text, int64_t count);

    // Tokens of the suffix and of what has followed it since.
    int64_t length() const { return length_; }

    // The token that follows most often, and its grade; the match then continues with it. -1 where nothing follows.
    std::pair<int64_t, int32_t> next();

   private:
    int64_t at(int64_t place) const { return place < count_ ? text_[place] : drafted_[size_t(place - count_)]; }

    const int64_t* text_;
    int64_t count_, length_ = 0;
    std::vector<int64_t> places_, drafted_;  // places: of the tokens after each occurrence, the latest first
    std::vector<std::pair<int64_t, int64_t>> counts_;
};

}  // namespace sk
