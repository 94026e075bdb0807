#include "penalties.h"

#include <math.h>

#include <algorithm>

namespace sk {

namespace {

// As in `engine.sampling.penalties`: most tokens of a repetition that count, and the largest penalty.
constexpr int64_t kLongest = 128;
constexpr double kMost = 1e6;

}  // namespace

void Penalties::apply(const sk_penalties& penalties, const std::vector<int64_t>& path, const Scored& scored) {
    all_ = &penalties;
    path_ = &path;
    scored_ = scored;
    if (int64_t(seen_.size()) < scored.size) seen_.resize(size_t(scored.size), 0);
    for (int64_t i = 0; i < penalties.bias_count; i++)
        if (float* logit = scored.of(penalties.biased[i])) *logit += penalties.bias[i];
    const float repetition = penalties.repetition, presence = penalties.presence, frequency = penalties.frequency;
    if (repetition != 1.0f)
        each_distinct(0, [&](float& logit) { logit = logit < 0.0f ? logit * repetition : logit / repetition; });
    if (presence != 0.0f) each_distinct(penalties.prompt, [&](float& logit) { logit -= presence; });
    if (frequency != 0.0f)
        for (int64_t i = penalties.prompt; i < length(); i++)
            if (float* logit = token(i) < scored.size ? scored.of(token(i)) : nullptr) *logit -= frequency;
    if (penalties.dry_multiplier > 0) discourage_repetitions();
}

// Calls change(logit) once for each token from place `first` on.
template <typename Change>
void Penalties::each_distinct(int64_t first, Change change) {
    if (++calls_ == 0) {
        std::fill(seen_.begin(), seen_.end(), 0);
        calls_ = 1;
    }
    for (int64_t i = first; i < length(); i++) {
        const int64_t each = token(i);
        if (each >= scored_.size || seen_[size_t(each)] == calls_) continue;
        seen_[size_t(each)] = calls_;
        if (float* logit = scored_.of(each)) change(*logit);
    }
}

// DRY (p-e-w 2024): every earlier place whose last tokens are the text's last tokens too.
void Penalties::discourage_repetitions() {
    const int64_t last = length() - 1, ending = token(last);
    const int64_t first = all_->dry_last > 0 ? std::max<int64_t>(length() - all_->dry_last, 0) : 0;
    repeated_.clear();
    if (breaks(ending)) return;
    for (int64_t place = first; place < last; place++) {
        if (token(place) != ending) continue;
        int64_t count = 1;
        const int64_t most = std::min(place + 1 - first, kLongest);
        while (count < most && token(place - count) == token(last - count) && !breaks(token(place - count))) count++;
        const int64_t next = token(place + 1);
        if (count < all_->dry_allowed || next >= scored_.size) continue;
        auto known = std::find_if(repeated_.begin(), repeated_.end(), [&](const auto& each) { return each.first == next; });
        if (known == repeated_.end())
            repeated_.push_back({next, count});
        else
            known->second = std::max(known->second, count);
    }
    for (const auto& [token, count] : repeated_) {
        const double power = pow(all_->dry_base, double(count - all_->dry_allowed));
        if (float* logit = scored_.of(token)) *logit -= float(std::min(all_->dry_multiplier * power, kMost));
    }
}

void extend(sk_penalties& penalties, const std::vector<int64_t>& tokens) {
    std::copy(tokens.begin(), tokens.end(), penalties.text + penalties.count);
    penalties.count += int64_t(tokens.size());
}

}  // namespace sk
