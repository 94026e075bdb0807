#include "text_match.h"

#include <algorithm>

namespace sk {

namespace {

// Earlier occurrences of the last token that are looked at, tokens of a match, matches whose continuations are counted.
constexpr int64_t kCompared = 1024, kLongest = 32;
constexpr size_t kOccurrences = 64;

// Matches from each of these lengths on have a grade of their own.
constexpr int64_t kLengths[] = {2, 3, 5, 9};

}  // namespace

TextMatch::TextMatch(const int64_t* text, int64_t count) : text_(text), count_(count) {
    const int64_t* end = text + count - 1;
    int64_t compared = 0;
    for (int64_t last = count - 2; last >= 0 && compared < kCompared; last--) {
        if (text[last] != *end) continue;
        compared++;
        int64_t length = 1;
        while (length < kLongest && length <= last && text[last - length] == end[-length]) length++;
        if (length < length_) continue;
        if (length > length_) places_.clear();
        length_ = length;
        if (places_.size() < kOccurrences) places_.push_back(last + 1);
    }
}

std::pair<int64_t, int32_t> TextMatch::next() {
    if (places_.empty()) return {-1, 0};
    counts_.clear();
    for (int64_t place : places_) {
        const int64_t token = at(place);
        auto known = std::find_if(counts_.begin(), counts_.end(), [&](const auto& each) { return each.first == token; });
        if (known == counts_.end())
            counts_.push_back({token, 1});
        else
            known->second++;
    }
    // The first of several that are as frequent is the latest.
    const auto fewer = [](const auto& a, const auto& b) { return a.second < b.second; };
    const auto [token, often] = *std::max_element(counts_.begin(), counts_.end(), fewer);
    int32_t grade = 0;
    if (2 * often > int64_t(places_.size())) {
        grade = 1;
        for (int64_t least : kLengths) grade += length_ >= least;
    }
    std::vector<int64_t> kept;
    for (int64_t place : places_)
        if (at(place) == token) kept.push_back(place + 1);
    places_ = std::move(kept);
    drafted_.push_back(token);
    length_++;
    return {token, grade};
}

}  // namespace sk
