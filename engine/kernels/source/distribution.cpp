#include <algorithm>
#include <cmath>
#include <vector>

#include "rng.h"
#include "sampling.h"

namespace sk {

namespace {

// e^-88 is 0: beyond that gap nothing has any weight.
constexpr float kFirstGap = 4.0f, kLastGap = 88.0f;

struct Candidate {
    float logit;
    double weight;
};

// So few are sorted.
constexpr size_t kFew = 256;

// The logit at which the weights of the larger ones and its own first come to `enough`; the smallest if they never do.
float logit_where(std::vector<Candidate> left, double enough) {
    double before = 0;
    while (left.size() > kFew) {
        const auto smaller = [](const Candidate& a, const Candidate& b) { return a.logit < b.logit; };
        const auto [least, most] = std::minmax_element(left.begin(), left.end(), smaller);
        const float middle = least->logit + (most->logit - least->logit) / 2;
        std::vector<Candidate> upper, lower;
        double mass = 0;
        for (const Candidate& each : left) {
            (each.logit > middle ? upper : lower).push_back(each);
            if (each.logit > middle) mass += each.weight;
        }
        if (upper.empty() || lower.empty()) break;  // all are equal, or next to it
        const bool reached = before + mass >= enough;
        if (!reached) before += mass;
        left = std::move(reached ? upper : lower);
    }
    std::sort(left.begin(), left.end(), [](const Candidate& a, const Candidate& b) { return a.logit > b.logit; });
    float found = left.front().logit;
    for (const Candidate& each : left) {
        if (before >= enough) break;
        found = each.logit;
        before += each.weight;
    }
    return found;
}

}  // namespace

bool Distribution::standardise(const Kernels& kernels, const float* logits, int64_t size, const sk_sampling& sampling,
                               uint64_t seed, int64_t position) {
    kernels_ = &kernels;
    size_ = size;
    weights_.reserve(size);
    sums_.reserve(size / kBestBlock + 1);
    const float factor = float(1.0 / sampling.temperature);
    const float most = kernels.weigh(logits, size, factor, weights_.get());
    if (std::isnan(most)) {
        std::fill(weights_.get(), weights_.get() + size, 0.0f);
        total_ = 0;
        return false;
    }
    sum_again();
    const bool filters = sampling.top_k > 0 || sampling.top_p < 1 || !std::isinf(sampling.log_min_p);
    if (filters) filter(logits, most, factor, sampling);
    const bool without = sampling.xtc_probability > 0 &&
                         uniform(seed, uint64_t(position), kXtcStream, 0) < sampling.xtc_probability;
    if (without) exclude_top_choices(sampling.xtc_threshold);
    return true;
}

// XTC: of the tokens of at least the threshold only the least likely are left.
void Distribution::exclude_top_choices(double threshold) {
    const float least = float(threshold * total_);
    float edge = __builtin_inff();
    for (int64_t first = 0, b = 0; first < size_; first += kBestBlock, b++) {
        if (sums_.get()[b] < least * 0.5f) continue;
        for (int64_t i = first; i < std::min(size_, first + kBestBlock); i++)
            if (weights_.get()[i] >= least) edge = std::min(edge, weights_.get()[i]);
    }
    for (int64_t i = 0; i < size_; i++)
        if (weights_.get()[i] > edge) weights_.get()[i] = 0;
    sum_again();
}

void Distribution::filter(const float* logits, float most, float factor, const sk_sampling& sampling) {
    const float least_kept = edge(logits, most, factor, sampling);
    kernels_->cut(logits, size_, least_kept, most, factor, sampling.log_min_p, weights_.get());
    sum_again();
}

// The smallest logit that top-k and top-p keep; tokens tied at it are kept together.
float Distribution::edge(const float* logits, float most, float factor, const sk_sampling& sampling) const {
    const bool by_count = sampling.top_k > 0, by_mass = sampling.top_p < 1;
    if (!by_count && !by_mass) return -__builtin_inff();
    const int64_t count = std::min(sampling.top_k, size_);
    std::vector<Candidate> found;
    // The largest logits, as many as it takes: a wider gap each time.
    for (float gap = kFirstGap;; gap *= 2) {
        const bool all = gap > kLastGap;
        const float limit = all ? -__builtin_inff() : most - gap / factor;
        // Far from its exact value, so that rounding leaves nothing out.
        const float lightest = all ? -1.0f : std::exp(-gap) * 0.5f;
        found.clear();
        double mass = 0;
        for (int64_t first = 0, b = 0; first < size_; first += kBestBlock, b++) {
            if (sums_.get()[b] < lightest) continue;
            for (int64_t i = first; i < std::min(size_, first + kBestBlock); i++)
                if (logits[i] >= limit) {
                    found.push_back({logits[i], weights_.get()[i]});
                    mass += weights_.get()[i];
                }
        }
        if (all || (by_count ? int64_t(found.size()) >= count : mass >= sampling.top_p * total_)) break;
    }
    if (!by_count) return logit_where(std::move(found), sampling.top_p * total_);
    std::vector<Candidate> counted = found;
    for (Candidate& each : counted) each.weight = 1;
    const float last = logit_where(std::move(counted), double(count));
    if (!by_mass) return last;
    double mass = 0;
    std::vector<Candidate> kept;
    for (const Candidate& each : found)
        if (each.logit >= last) {
            kept.push_back(each);
            mass += each.weight;
        }
    return logit_where(std::move(kept), sampling.top_p * mass);
}

void Distribution::normalise() {
    kernels_->multiply_by(weights_.get(), size_, float(1.0 / total_));
    sum_again();
}

bool Distribution::standardise_into(const Kernels& kernels, const float* logits, int64_t size, const sk_sampling& sampling,
                                    uint64_t seed, int64_t position, float* out) {
    const bool sound = standardise(kernels, logits, size, sampling, seed, position);
    if (sound) normalise();
    std::copy(weights(), weights() + size, out);
    return sound;
}

int64_t Distribution::take(double u) {
    if (!(total_ > 0)) return -1;
    const int64_t token = draw(u);
    weights()[token] = 0;
    sum_again(token);
    return token;
}

void Distribution::assign(const Kernels& kernels, const float* weights, int64_t size) {
    kernels_ = &kernels;
    size_ = size;
    std::copy(weights, weights + size, weights_.reserve(size));
    sums_.reserve(size / kBestBlock + 1);
    sum_again();
}

void Distribution::sum_again() {
    kernels_->sum_blocks(weights_.get(), size_, sums_.get());
    add_up();
}

void Distribution::sum_again(int64_t token) {
    const int64_t block = token / kBestBlock, first = block * kBestBlock;
    kernels_->sum_blocks(weights_.get() + first, std::min(kBestBlock, size_ - first), sums_.get() + block);
    add_up();
}

void Distribution::add_up() {
    total_ = 0;
    for (int64_t b = 0; b * kBestBlock < size_; b++) total_ += sums_.get()[b];
}

int64_t Distribution::draw(double u) const {
    // Rounding must not raise a point to the total, which no sum exceeds.
    double point = std::min(u * total_, std::nextafter(total_, 0.0)), before = 0;
    int64_t block = 0;
    while (before + sums_.get()[block] <= point) before += sums_.get()[block++];
    point -= before;
    int64_t found = block * kBestBlock;
    double sum = 0;
    for (int64_t i = found; i < std::min(size_, (block + 1) * kBestBlock); i++) {
        if (weights_.get()[i] <= 0) continue;
        found = i;
        sum += weights_.get()[i];
        if (sum > point) break;
    }
    return found;
}

}  // namespace sk
