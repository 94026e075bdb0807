// A whole decoder: all layers of a pass in one call.
#pragma once
#include <stdint.h>

#include <initializer_list>
#include <string>
#include <vector>

#include "activations.h"
#include "api.h"
#include "kernels.h"
#include "thread_pool.h"

namespace sk {

// Tokens that one piece of attention takes, and of a pass that one piece of the MLP takes at a time.
constexpr int64_t kAttentionTokens = 16, kMlpTokens = 64;
constexpr int64_t kMostExperts = 1024;
constexpr int64_t kMostTaps = 16;
// Logit of tokens that are not scored: a number, of which a softmax leaves nothing.
constexpr float kNotScored = -1e4f;

// Adjacent tokens of a pass in the same slot.
struct Row {
    int64_t first, count;
    int32_t own_first, own_last;  // columns between which its tokens and their ancestors lie
    const int32_t* table;         // of its slot
    int64_t end;                  // position after its last one
    int64_t placed;               // leading blocks whose positions are in columns of the same number for all its tokens
    int64_t joined;               // leading blocks that the first state of its tokens is about
    int64_t at;                   // in `order_`

    int64_t blocks() const { return (end + kKeyBlock - 1) / kKeyBlock; }
};

// The block of the cache that holds a column of a slot.
inline int64_t block_of(const sk_tables& tables, int64_t slot, int64_t column) {
    return tables.blocks[slot * tables.width + column / kCacheBlock];
}

// Some tokens, as indices of `order_`, and some blocks of keys, which belong to `row`; index of the first state of
// each token.
struct AttentionPiece {
    int64_t row, first, count, first_block, last_block, state;
};

// Adjacent tokens of a row that are written to one block of the cache.
struct CacheRun {
    int64_t first, count, block;
};

// down · (activation(gate · x) · (up · x)) of a layer, or of all experts of a mixture.
struct GatedMlp {
    const sk_matrix &gate, &up, &down;
    const float *gate_bias, *up_bias;
};

// Groups of 32 columns of a dense MLP, or of one of its experts, for tokens `from` to `to` - 1.
struct GatePiece {
    int64_t expert, size, first, last, from, to;
};

// Choices of the experts by the tokens of a pass, and what the experts compute. The tokens of an expert are consecutive
// rows, so that its weights are read once.
struct Routing {
    struct Run {
        int64_t expert, first, last;  // rows
    };
    std::vector<int32_t> chosen;   // [tokens, experts_per_token], the likeliest first
    std::vector<float> weights;    // of the chosen experts
    std::vector<int64_t> rows;     // of the chosen experts
    std::vector<Run> runs;
    std::vector<int64_t> starts;   // [experts + 1], first row of each
    Buffer<float> scores, out;     // [tokens, experts], [rows, hidden]
    Buffer<float> shared_scores;   // [tokens], of the shared expert
    Activations asked, shared;     // [tokens, hidden], what router and shared expert read, if they have norms of their own
    Activations in, hidden;        // [rows, hidden], [rows, expert_size]
};

class Decoder {
   public:
    // Copies what `model` points to, but neither weights, norms nor tables.
    explicit Decoder(const sk_model& model);

    void attach(const sk_tables& tables, const sk_cache* layers);

    void attach_recurrent(int32_t ring, float* const* rings, float* const* stored, int32_t* lengths,
                          const int32_t* commits);

    // What is wrong with the batch, or nothing.
    std::string fault(const sk_batch& batch) const;

    // Runs a batch without a fault. The caller holds the pool's mutex: one pass at a time in a process.
    void pass(const sk_batch& batch);

    // Writes the keys and values that all layers have of `entered`, as they are, and nothing else.
    void write_keys(const sk_batch& batch);

    // Copies columns of a slot (`sk_decoder_move`); what is wrong, or nothing.
    std::string move(int32_t slot, const int32_t* sources, int64_t count, int32_t target);

    const sk_model& model() const { return model_; }

    // Scores tokens of the last pass that it has not judged.
    void judge(const sk_batch& batch);

    // What the output layer has read of judged token i, [hidden].
    const float* judged(int64_t i) { return judged_.token(i); }

   private:
    void start(const sk_batch& batch);
    void plan(const sk_batch& batch);
    void plan_rows(const sk_batch& batch);
    void plan_attention();
    int64_t pieces_wanted() const;
    void divide(size_t first, size_t last, int64_t block);
    bool shares(const Row& a, const Row& b, int64_t block) const;
    int32_t last_needed(const sk_batch& batch) const;
    void plan_recurrent();
    void embed(const sk_batch& batch);
    void find_inputs(const sk_batch& batch);
    void layer(const sk_layer& layer, int32_t index, const sk_batch& batch);
    void project(const sk_layer& layer, int32_t index, const sk_batch& batch);
    void finish_query(const sk_layer& layer, int32_t index, const sk_batch& batch, int64_t head);
    void finish_key(const sk_layer& layer, int32_t index, const sk_batch& batch, int64_t head);
    void finish_value(const sk_layer& layer, int32_t index, const sk_batch& batch, int64_t head);
    void norm_and_rotate(const sk_layer& layer, const float* head_norm, int64_t position, float* values);
    void store_key(const sk_layer& layer, int32_t index, int64_t block, int64_t column, const float* key);
    void store_value(const sk_layer& layer, int32_t index, int64_t block, int64_t column, float* value);
    void attend(const sk_layer& layer, const sk_batch& batch);
    Attention attention_of(const sk_layer& layer, const sk_batch& batch, const AttentionPiece& piece, int64_t key_head) const;
    bool is_whole(const sk_layer& layer, int64_t t) const;
    void merge(const sk_layer& layer, int64_t t, int64_t first, int64_t count);
    void attention_out(const sk_layer& layer);
    void short_convolution(const sk_layer& layer, int32_t index, const sk_batch& batch);
    void state_layer(const sk_layer& layer, int32_t index, const sk_batch& batch);
    void delta_inputs(const sk_layer& layer, int32_t index, const sk_batch& batch, int64_t t);
    void delta_rule(const sk_layer& layer, int32_t index, const sk_batch& batch);
    void convolve(const sk_layer& layer, int32_t index, const sk_batch& batch, int64_t t, bool with_silu, float* out);
    void keep_updates(const sk_layer& layer, int32_t index, const sk_batch& batch);
    float* update(int32_t index, int32_t slot, int64_t position) const;
    void mlp(const sk_layer& layer);
    void add_input(const sk_layer& layer, int32_t index);
    void enter_plainly(const sk_matrix& matrix);
    void enter(const float* norm, std::initializer_list<const sk_matrix*> readers, Activations& to);
    void gate_groups(const GatedMlp& mlp, const Inputs& inputs, const GatePiece& piece, float* scratch, Activations& out);
    void experts(const sk_layer& layer);
    void route(const sk_layer& layer);
    void choose(const sk_layer& layer, float* scores, int32_t* places, float* weights);
    void sort_by_expert();
    void run_experts(const sk_layer& layer);
    void add_experts(const sk_layer& layer);
    void add_projection(const sk_matrix& matrix, const float* bias, const Activations& from, const float* out_norm,
                        const float* conv_base = nullptr);
    void convolve_input(const sk_matrix& dynamic, const float* base);
    void convolve_tokens(const float* base, int64_t side);
    void tap(const sk_batch& batch, int32_t depth, const float* states);
    void score(const sk_batch& batch);
    void finish_logits(float* logits, int64_t count) const;
    void score_likeliest(const sk_batch& batch);
    void score_clusters(const sk_batch& batch);
    void choose_clusters(int64_t count);
    void find_best(const sk_batch& batch);

    sk_model model_;
    std::vector<sk_layer> layers_;
    std::vector<sk_rope> ropes_;
    std::vector<sk_cache> caches_;
    std::vector<float*> rings_, stored_;
    int32_t* lengths_ = nullptr;
    const int32_t* commits_ = nullptr;
    sk_tables tables_{};
    int64_t ring_ = 0;
    float epsilon_ = 0;  // of the norms of `states_`
    int64_t query_width_ = 0, key_width_ = 0, gate_width_ = 0;  // most outputs of a layer's `query`, `key` and `mixer_gate`
    int64_t head_size_ = 0, key_heads_ = 0;  // the largest; the fewest of a layer with attention
    int32_t caching_layers_ = 0;             // layers up to the last one with a cache
    bool sees_later_ = false;                // whether some layer does
    // Of recurrent layers: channels of the convolution, floats of keys and of values of all heads, and of an update.
    int64_t channels_ = 0, delta_keys_ = 0, delta_values_ = 0, update_ = 0;
    std::vector<float> zeros_, units_;

    const Kernels* kernels_ = nullptr;
    ThreadPool& pool_ = ThreadPool::instance();
    int64_t tokens_ = 0;
    const int32_t* slots_ = nullptr;  // of the tokens
    std::vector<Row> rows_;  // sorted so that rows with common blocks are next to each other
    std::vector<CacheRun> runs_;
    std::vector<int32_t> order_;  // tokens row by row
    std::vector<int32_t> placed_, states_count_;  // of each token: as `Attention` has it; states to be merged
    std::vector<int32_t> lasts_, ends_;           // of each token: last position of its row, and the one after it
    std::vector<AttentionPiece> pieces_;
    bool share_ = false, split_ = false;  // whether pieces are made for several rows, and for single blocks
    int64_t most_own_ = 0, most_states_ = 0;
    Buffer<float> states_;  // divided by `residual_scale`, which layers then need not apply
    Buffer<float> queries_, keys_new_, values_new_, branch_, partial_, convolved_, factors_;
    Buffer<float> conv_weights_;  // [tokens, 2, taps, conv_groups]
    Buffer<float> inputs_, gates_;  // [tokens, layers, inputs], [tokens, inputs] or [tokens, mixer_gate rows]
    Activations normed_, attended_, mixed_, hidden_, judged_;
    Buffer<float> clusters_;       // [judged, clusters], their scores
    std::vector<int32_t> chosen_;  // [judged, clusters]
    Routing routing_;
    std::vector<Buffer<float>> scratch_;
};

}  // namespace sk
