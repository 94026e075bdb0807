#include "growth.h"

#include <algorithm>

#include "text_match.h"

namespace sk {

namespace {

template <typename Value, typename Key>
void sort_by(std::vector<Value>& values, Key key) {
    std::stable_sort(values.begin(), values.end(), [&](const Value& a, const Value& b) { return key(a) < key(b); });
}

}  // namespace

Growth::Growth(const sk_growing& all, sk_growth& row) : all_(all), row_(row), final_(row.sampling || row.required > 0) {
    row.from_text = row.expanded_count = 0;
    if (row.given) return;
    floor_ = row.passes[1] - row.passes[0];
    for (int32_t i = 1; i < all.longest; i++) floor_ = std::min(floor_, row.passes[i + 1] - row.passes[i]);
    floor_ = std::max(floor_, all.least);
}

void Growth::continue_text() {
    if (row_.given || !row_.text) return;
    TextMatch match(row_.text, row_.text_count);
    double chance = 1, gained = 0, most = 0;
    int32_t best = 0, before = -1;
    for (uint8_t mark = 0; count() < row_.room && mark != SK_ENDS;) {
        const auto [token, grade] = match.next();
        if (token < 0 || token >= all_.vocabulary || (tokens_.empty() && grade < row_.text_least)) break;
        mark = all_.marks[token];
        if (mark == SK_NEVER_DRAFTED) break;
        if (row_.required == 0) chance *= (grade == before ? row_.text_repeat_rates : row_.text_rates)[grade];
        before = grade;
        parents_.push_back(count());
        tokens_.push_back(token);
        grades_.push_back(all_.text_grade + grade);
        gained += chance;
        if (row_.required > 0 || gained - row_.passes[count()] > most) best = count(), most = gained - row_.passes[best];
    }
    tokens_.resize(size_t(best));
    parents_.resize(size_t(best));
    grades_.resize(size_t(best));
    if (best) row_.from_text = 1, final_ = true;
}

const std::vector<Offered>& Growth::offers(const float* shares) {
    level_++;
    found_.clear();
    offered_.clear();
    added_.clear();
    for (const GrownNode& node : nodes_) rank(node, shares + node.source * all_.branches);
    sort_by(found_, [](const Offered& each) { return -each.chance; });
    for (const Offered& each : found_) {
        const bool is_required = level_ <= row_.required && each.rank == 0 && each.node.place == required_;
        const bool room = !final_ || tokens_.size() + offered_.size() < size_t(all_.longest);
        if (room && (is_required || each.chance > price(offered_.size()))) offered_.push_back(each);
    }
    sort_by(offered_, [&](const Offered& each) { return each.node.place * all_.branches + each.rank; });
    return offered_;
}

void Growth::add(const Offered& offered, int64_t token) {
    added_.push_back(offered);
    tokens_.push_back(token);
    parents_.push_back(offered.node.place);
    grades_.push_back(offered.grade);
    chances_.push_back(offered.chance);
    columns_.push_back(0);
}

void Growth::find_promising() {
    promising_.clear();
    gain_ = 0;
    if (level_ >= row_.depth || (final_ && count() >= all_.longest)) return;
    const double least = price(0);
    const int32_t before = required_;
    required_ = 0;
    int32_t place = count() - int32_t(added_.size());
    for (const Offered& each : added_) {
        place++;
        double worth = each.chance * all_.hope - least;
        if (level_ < row_.required && each.rank == 0 && each.node.place == before) {
            required_ = place;
            worth = std::max(worth, 0.0) + row_.step;
        }
        if (worth > 0) promising_.push_back({worth, place, each.chance, each.node.source});
    }
    sort_by(promising_, [](const Promising& each) { return -each.worth; });
    promising_.resize(std::min(promising_.size(), size_t(all_.longest - expanded_)));
    for (const Promising& each : promising_) gain_ += each.worth;
    sort_by(promising_, [](const Promising& each) { return each.place; });
}

void Growth::expand(int64_t source) {
    nodes_.clear();
    for (const Promising& each : promising_) {
        columns_[size_t(each.place)] = ++expanded_;
        nodes_.push_back({each.place, each.chance, source++});
    }
}

std::vector<int64_t> Growth::path(int32_t place) const {
    std::vector<int64_t> found;
    for (; place; place = parents_[size_t(place) - 1]) found.push_back(token(place));
    std::reverse(found.begin(), found.end());
    return found;
}

std::vector<int32_t> Growth::columns_before(int32_t place) const {
    std::vector<int32_t> found;
    while ((place = parents_[size_t(place) - 1])) found.push_back(column(place));
    std::reverse(found.begin(), found.end());
    return found;
}

void Growth::finish() {
    if (row_.given) return;
    std::vector<int32_t> kept(tokens_.size());
    for (size_t i = 0; i < kept.size(); i++) kept[i] = int32_t(i);
    if (!final_) {
        sort_by(kept, [&](int32_t i) { return -chances_[size_t(i)]; });
        size_t best = 0;
        double gained = 0, most = 0;
        for (size_t count = 1; count <= std::min(kept.size(), size_t(all_.longest)); count++) {
            gained += chances_[size_t(kept[count - 1])];
            const double worth = gained - row_.passes[count];
            if (worth > most) most = worth, best = count;
        }
        kept.resize(best);
        std::sort(kept.begin(), kept.end());
    }
    std::vector<int64_t> places(tokens_.size() + 1, 0);
    int64_t *tokens = row_.drafted, *parents = tokens + all_.longest, *grades = parents + all_.longest;
    row_.count = 0;
    const int32_t first = row_.from_text ? 0 : row_.first_grade;
    for (int32_t i : kept) {
        tokens[row_.count] = tokens_[size_t(i)];
        parents[row_.count] = places[size_t(parents_[size_t(i)])];
        grades[row_.count] = first + grades_[size_t(i)];
        places[size_t(i) + 1] = ++row_.count;
    }
    row_.expanded_count = expanded_;
    for (size_t i = 0; row_.expanded && i < tokens_.size(); i++) {
        const int32_t read = columns_[i + 1] - 1;
        if (read < 0) continue;
        row_.expanded[read] = tokens_[i];
        row_.expanded[all_.longest + read] = columns_[size_t(parents_[i])];
    }
}

// The children of a node, by rank, in order of descending probability.
void Growth::rank(const GrownNode& node, const float* shares) {
    double chance = node.chance;
    for (int32_t rank = 0; rank < all_.branches; rank++) {
        const double share = shares[rank];
        if (!(share > 0)) break;
        const int32_t grade = int32_t(std::upper_bound(all_.edges, all_.edges + all_.edge_count, share) - all_.edges);
        chance = std::min(chance, node.chance * row_.rates[grade]);
        if (rank && (drawn() || chance <= floor_)) break;  // nor will later ones be offered
        found_.push_back({node, rank, grade, chance});
    }
}

// Cost of one more token in addition to the current ones and `more`.
double Growth::price(size_t more) const {
    const size_t count = std::min(tokens_.size() + more, size_t(all_.longest) - 1);
    return std::max(row_.passes[count + 1] - row_.passes[count], all_.least);
}

std::vector<Growth> growths_from_text(sk_growing& all) {
    std::vector<Growth> growths;
    for (int64_t r = 0; r < all.row_count; r++) {
        growths.emplace_back(all, all.rows[r]);
        growths.back().continue_text();
    }
    return growths;
}

void grow_from_text(sk_growing& all) {
    all.steps = 0;
    for (Growth& growth : growths_from_text(all)) growth.finish();
}

void choose_expanded(std::vector<Growth>& growths) {
    double gain = 0, steps = 0;
    for (const Growth& growth : growths)
        if (!growth.row().repeatable) gain += growth.gain(), steps += growth.row().step;
    for (Growth& growth : growths) {
        const double own = growth.gain();
        if (own == 0 || !(growth.row().repeatable ? own >= growth.row().step : gain > steps)) growth.stop();
    }
}

}  // namespace sk
