// Plain C interface of the quantised CPU kernels. Loaded with ctypes: every change of a struct or a signature raises
// SK_ABI, which the Python side compares.
//
// Functions that can fail return 0 and leave one sentence in sk_error() (per thread); they return 1 otherwise.
// Where memory is short, on whichever thread, that sentence is SK_NO_MEMORY.
#pragma once
#include <stdint.h>

#define SK_ABI 27
#define SK_NO_MEMORY "there is not enough memory"
#define SK_EXPORT extern "C" __attribute__((visibility("default")))

// How a matrix is stored; layout.h describes the bytes.
enum sk_format : int32_t {
    SK_Q4 = 0,          // 4-bit codes, float16 scale and minimum per 32
    SK_Q4_SUPER = 1,    // 4-bit codes, 6-bit scale and minimum per 32, float16 factors of both per 256
    SK_Q8 = 2,          // signed 8-bit codes, float16 scale per 32
    SK_Q8_MINIMUM = 3,  // signed 8-bit codes, float16 scale and minimum per 32
    SK_Q8_SUPER = 4,    // signed 8-bit codes, scales as in SK_Q4_SUPER
    SK_Q6_SUPER16 = 5,  // signed 6-bit codes, signed 8-bit scale per 16, float16 factor per 256
    SK_MXFP4 = 6,       // 4-bit E2M1 codes, E8M0 scale per 32
    SK_BF16 = 7,
    SK_F16 = 8,
    SK_F32 = 9,
};

enum sk_variant_id : int32_t { SK_SCALAR = 1, SK_AVX2 = 2, SK_AVX512 = 4, SK_NEON = 8, SK_AMX = 16 };
// What drafts from the text end with, and what they never have.
enum sk_mark : uint8_t { SK_ENDS = 1, SK_NEVER_DRAFTED = 2 };
enum sk_activation : int32_t {
    SK_SILU = 0,
    SK_GELU_TANH = 1,
    SK_IDENTITY = 2,
    SK_CLAMPED_SWISH = 3,
    SK_SIGMOID = 4,
};
enum sk_mixer : int32_t { SK_ATTENTION = 0, SK_SHORT_CONVOLUTION = 1, SK_DELTA_NET = 2, SK_STATE_SPACE = 3 };

// W [rows, columns] of y = x Wᵀ, packed.
struct sk_matrix {
    int32_t format;
    int32_t streamed;  // set by a decoder: the model does not fit into the last-level cache
    int64_t rows;
    int64_t columns;
    const void* data;
};

// One decoder layer. Norm weights and biases are float32; null if the model has none. A short convolution has `query`
// [3 · hidden, hidden], whose outputs are the gate of its input, the gate of its output and its input, and `output`.
// A gated delta net has `query` [channels, hidden], whose outputs are queries, keys and values before their convolution,
// `key` and `value` [value heads, hidden], from which beta and the decay follow, `mixer_gate` and `output`.
// A state space model (Mamba-2) is the same without `key`: C are queries, B keys, x values, its groups key heads.
struct sk_layer {
    sk_matrix query, key, value, output, gate, up, down;
    const float *query_bias, *key_bias, *value_bias, *output_bias;
    const float* attention_norm;      // [hidden], before attention
    const float* attention_out_norm;  // [hidden], of the attention output before the residual addition
    const float* mlp_norm;            // [hidden], before the MLP
    const float* mlp_out_norm;        // [hidden], of the MLP output before the residual addition
    const float *query_norm, *key_norm;  // [head_size], on every head before the rotary embedding
    int32_t window;  // sliding window: positions that a token sees, itself included; 0 for all
    int32_t rope;    // index of its rotary table
    int32_t mixer;   // sk_mixer
    int32_t sees_later;  // whether a token sees the later tokens of its slot in the pass too, which are a chain then
    const float *convolution, *convolution_bias;  // [taps, channels], the oldest input first; [channels]
    // [experts, hidden] of a mixture of experts, whose gate, up and down hold the matrices of its experts one after the other;
    // without rows for a dense MLP.
    sk_matrix router;
    const float *router_bias, *gate_bias, *up_bias, *down_bias;  // of a mixture the biases of all experts
    const float* sinks;  // [heads], a score of every head that takes its share of the softmax and has no value
    int32_t key_heads, head_size;
    int32_t source;  // the layer whose keys and values it attends to: itself, or an earlier one if it has no `key`
    float scale;     // factor on its output
    const float* value_norm;  // [head_size]; a layer without `value` has its keys as values, before norm and rotary embedding
    // A second input of every token (`sk_model::inputs`): the layer's output before `scale` is x + norm(input_projection ·
    // (activation(input_gate · x) · input)); without rows in other layers.
    sk_matrix input_gate, input_projection;  // [inputs, hidden], [hidden, inputs]
    const float* input_norm;                 // [hidden]
    sk_matrix mixer_gate;  // of what `output` reads: sigmoid of attention, silu of a delta net; without rows for none
    const float *decay_rate, *decay_bias;  // [value heads]: decay = e^(rate · softplus(input + bias))
    const float* delta_norm;  // [value size], of every head of a delta net, before the gate; of a state space model
                              // [value heads · value size], of every group, after the gate
    const float* skip;        // [value heads] of a state space model: factor on its values in the output
    // Of a mixture, an expert that all tokens use besides the chosen ones, without rows for none, and [1, hidden], whose
    // output's sigmoid is its weight, without rows for 1.
    sk_matrix shared_gate, shared_up, shared_down, shared_router;
    const float *router_norm, *shared_norm;  // [hidden], norms of what the router and the shared expert read in the place of
                                             // `mlp_norm`; null for that
    const float *experts_out_norm, *shared_out_norm;  // [hidden], of the outputs of the chosen experts and the shared one; both
                                                      // are added before `mlp_out_norm`
    const float *choice_bias, *expert_scale;  // [experts], added to the scores that experts are chosen by; factor on weights
    // Convolutions over the tokens of a slot, which are a chain, before and after attention and MLP: the weights of a column are
    // those of [2, taps, hidden], the token's own first, and those that [2 · taps · conv_groups, hidden] of the part's input
    // gives to its group of columns; without rows for none.
    sk_matrix attention_conv, mlp_conv;
    const float *attention_conv_base, *mlp_conv_base;
};

struct sk_rope {
    const float *cosines, *sines;  // [positions, pairs]; dimensions d and d + pairs are a pair
    int32_t positions, pairs;
    const float* query_scales;  // [positions], factor on queries; null for 1
};

struct sk_model {
    int32_t layer_count, hidden, heads, vocabulary, activation, rope_count;
    int32_t taps;  // inputs that a convolution reads, the token's own included
    float epsilon, attention_scale;
    float attention_cap, logit_cap;  // c of c·tanh(x/c) on scores and logits; 0 for none
    float embedding_scale, residual_scale, logit_scale;  // factors on embeddings, on what a layer adds, and on logits
    int32_t experts, experts_per_token, expert_size;  // of mixtures of experts; 0 without experts
    int32_t normalise_experts;  // whether the weights of a token's experts add up to 1
    int32_t sigmoid_experts;    // whether the router's scores are sigmoids of its outputs, else their softmax
    float routed_scale;         // factor on the weights of the chosen experts
    sk_matrix embedding, output;
    const float* final_norm;
    const sk_layer* layers;
    const sk_rope* ropes;
    // A token's inputs of all layers, [layers, inputs]: norm(inputs_projection · embedding / sqrt(hidden)) + inputs_scale ·
    // inputs_embedding[id]; without rows in other models.
    sk_matrix inputs_embedding, inputs_projection;  // [vocabulary, layers · inputs], [layers · inputs, hidden]
    const float* inputs_norm;                       // [inputs], on the inputs of every layer
    int32_t inputs;
    float inputs_scale;
    int32_t delta_key_heads, delta_value_heads, delta_key_size, delta_value_size;  // of these two; 0 without
    // [clusters, hidden], scores of the clusters of output rows, which are of one size, a multiple of 16; without rows where
    // all tokens are scored. A token gets the logits of `clusters_scored` of them.
    sk_matrix clusters;
    // [vocabulary, hidden], the output layer itself where `output` is a copy of it in shorter codes: the likeliest tokens
    // are scored again with it. Without rows where `output` is no copy.
    sk_matrix exact;
    int32_t clusters_scored;
    int32_t conv_groups;  // groups of columns of `attention_conv` and `mlp_conv`
};

// Keys [blocks, key_heads, head_size, 32] and values [blocks, key_heads, 32, head_size] of a layer, owned by the caller:
// float16, or signed 8-bit codes with a scale per column and head.
typedef struct {
    void *keys, *values;
    float *key_scales, *value_scales;  // [blocks, key_heads, 32]; null of float16
} sk_cache;

// Blocks of 32 columns of the cache that hold the columns of every slot; a pass reads and writes the columns of its tokens.
typedef struct {
    const int32_t* blocks;  // [slots, width], owned by the caller, who may change it between calls
    int32_t slots, width;
} sk_tables;

// One pass over n tokens, flat; tokens of one slot are adjacent. Token i sees the columns 0 to
// prefixes[i] - 1 of its slot, which hold those positions, then the columns ancestors[ancestor_offsets[i]] to
// ancestors[ancestor_offsets[i + 1] - 1], in the order of their positions, then itself.
struct sk_batch {
    int64_t tokens;
    const int64_t* ids;
    const float* entered;  // [tokens, hidden], what the first layer reads; null for the embeddings of the ids
    const int32_t *slots, *positions, *columns, *prefixes;
    const int32_t *ancestor_offsets, *ancestors;
    int64_t judged_count;
    const int32_t* judged;  // tokens whose logits are computed
    float* logits;          // [judged_count, vocabulary]
    int32_t* best;          // [judged_count, best_count], tokens with the largest logits in order; -1 where a logit is
                            // not a number; null where they are not wanted
    float* shares;          // [judged_count, best_count], their softmax probabilities; null if not needed
    int64_t best_count;
    int64_t tap_count;
    const int32_t* taps;    // depths of hidden states: 0 the embeddings, layer_count the output of the final norm
    float* tapped;          // [tokens, tap_count, hidden]
    int32_t threads;
    int32_t reserved;
};

// A draft head: `layer` is one layer with the target's embedding, an output layer for the draft vocabulary, and the norm
// of that layer's input. The input of a token is `token` of its normalised embedding plus the state of the token before:
// `fuse` of the target's normalised hidden states there, or `again` of the head's own output.
struct sk_head_model {
    sk_model layer;
    sk_matrix fuse, again, token;
    int32_t tap_count;  // hidden states that are fused
    int32_t reserved;
};

// One step of a head: a pass of its layer over `batch`, without taps and `entered`.
struct sk_head_step {
    sk_batch batch;
    const int32_t* sources;  // [tokens], the judged token of the previous step whose output is read; -1 for the state
                             // stored in the slot at the token's column
};

// A block drafter (DFlash, DFlash 2, DSpark): one pass over a row's last token and `size` - 1 masks, which see each other and, in
// the cache of the draft, keys and values of norm(fuse · the target's hidden states) at all tokens before. `layers` has the
// target's embedding and output layer. The rows of the block from `first` on score the tokens of a draft.
struct sk_block_model {
    sk_model layers;
    sk_matrix fuse;
    const float* fuse_norm;  // [hidden]
    // Bias of the logits by the token before: bias · (a row of `previous` ⊙ factors), [vocabulary, rank] and [target vocabulary,
    // rank]; without rows for none. The factors of a position are 1, or `factor` [rank, hidden] · what it is scored with, or
    // sigmoid(that + `factor_previous` [rank, rank] · the row of `previous` + `factor_bias` [rank]).
    sk_matrix bias, previous, factor, factor_previous;
    const float* factor_bias;
    // [hidden], and [rank] of the row of `previous`: weights of the logit that the likeliest token is accepted; null where
    // its probability says that.
    const float *confidence, *confidence_previous;
    float confidence_bias;
    int32_t tap_count, size, first;
    int32_t candidates;  // likeliest tokens of a position without bias, of which it drafts one; 0: any token
    int64_t mask;
};

// Hidden states of the target for some tokens of a slot.
struct sk_read {
    int32_t slot, first;  // first: column of the first token
    int64_t count;
    const float* tapped;  // [count, tap_count, hidden], the target's hidden states there
};

// From logits to a distribution: temperature, then top-k, top-p, min-p and XTC, as `engine.sampling.sampler` has them.
struct sk_sampling {
    double temperature;                     // above 0
    double top_p;                           // 1: off
    int64_t top_k;                          // 0: off
    double xtc_probability, xtc_threshold;  // probability 0: off
    float log_min_p;                        // -inf: off
    int32_t reserved;
};

// Bias and penalties of a row, as `engine.sampling.penalties` and `dry` have them.
struct sk_penalties {
    int64_t* text;  // [count], prompt and reply; with room for what the rounds of a call add
    int64_t count, prompt;
    const int64_t* biased;  // [bias_count]
    const float* bias;
    int64_t bias_count;
    float repetition, presence, frequency;  // 1, 0, 0: off
    int32_t reserved;
    double dry_multiplier, dry_base;  // multiplier 0: off
    int64_t dry_allowed, dry_last;    // dry_last: tokens that are searched for repetitions; not above 0 for all
    const uint8_t* breaks;  // [vocabulary], whether no repetition reaches across a token
};

// A row's draft: what its text continues with where that repeats, or else by a network a tree that grows step by step as
// `engine.decoding.tree_growth` says. Node 0 is the row's last token, node i the i-th drafted one.
struct sk_growth {
    int32_t slot, begin, end;     // columns `begin` to `end` - 1, at least one, are read by the network if it drafts: then `begin` is `end`
    int32_t depth;                // maximum depth of a tree of the network; 0 for none
    int32_t required;             // depth that is drafted regardless of cost
    int32_t repeatable;           // whether its growth must not depend on other rows
    int32_t first_grade;          // is added to the grades of the network's tokens
    int32_t room, text_least;     // maximum number of tokens from the text, and least grade of the first
    int32_t from_text;            // output: whether the tokens are from the text, and not drawn
    int32_t given;                // whether the row has a draft already, which stays; nothing else here counts then
    const int64_t* ids;           // [end - begin], the tokens of those columns
    int64_t* text;                // [text_count], all tokens of the row, with room for what the rounds of a call add; null:
    int64_t text_count;           // the network drafts, whether the text repeats or not
    const double *text_rates, *text_repeat_rates;  // probability that a token of the text's grades is accepted: after one of
                                            // another grade, and after one of the same
    const double* passes;         // [longest + 1], cost of verifying 0, 1, ... tokens
    const double* rates;          // [edge_count + 1], probability that a token of a grade is accepted
    double step;                  // cost of a draft step
    const sk_sampling* sampling;  // of a sampled row; null takes the likeliest tokens
    sk_penalties* penalties;      // null: none
    uint64_t seed, number;        // of its random numbers
    float* q;                     // [longest, V'], output: distribution of each node's children
    int64_t* drafted;             // [3, longest], output: tokens, parents, and grades
    int64_t count;                // output: number of tokens
    int64_t* expanded;            // [2, longest], output: drafted tokens that the network has read, the first in the column
                                  // `end`, and the number of the one before each, 0 for node 0; null where not wanted
    int64_t expanded_count;       // output: number of these tokens
};

struct sk_growing {
    int64_t row_count;
    sk_growth* rows;
    int64_t read_count;
    const sk_read* read;   // new hidden states of the target
    const int64_t* known;  // [V'], the draft vocabulary as target token ids; null: the first tokens of the target's
    const int64_t* places; // [vocabulary], index of each token in it, any for others
    int64_t vocabulary;    // of the target
    const uint8_t* marks;  // [vocabulary], `sk_mark`, 0 for most tokens; null where no row has a text
    const double* edges;   // [edge_count], lower limits of the confidence grades
    int32_t edge_count;
    int32_t longest;       // maximum number of tokens per tree
    int32_t branches;      // maximum number of children per node
    int32_t stream;        // of the random numbers
    double least, hope;    // minimum cost of a token; acceptance probability of an accepted node's likeliest child
    int32_t threads;
    int32_t text_grade;    // of tokens of the text's first grade
    int32_t first;         // token of a text that a network's first column is for: 1 for a head, 0 for a decoder
    int32_t steps;         // output: number of draft steps
};

// A row of a round and its draft: a tree over K tokens, node 0 being the row's last token. Children of a node are tested in
// order, as `engine.decoding.acceptance` says: tokens drawn from q by speculative sampling, others by whether they are the
// target's own token.
struct sk_row {
    int32_t slot, start;          // position of node 0, and its column; node i is written i columns after it
    int64_t last_token;           // node 0
    int64_t count;                // K; of a draft that grows an output, as `q`
    int64_t* drafted;             // [3, most]: tokens, their parents, which come first, and of a draft that grows the grades
    const float* q;               // [nodes, support], distribution of each node's children; null if they were not drawn
    const sk_sampling* sampling;  // null if it accepts the likeliest tokens
    sk_penalties* penalties;      // null for none
    const uint32_t* allowed;      // [K + 1, vocabulary / 32 rounded up], by bit, tokens that may follow each node; null: all
    uint64_t seed, number;        // of its random numbers
    int32_t held;                 // whether the caller judges it
    int32_t accepted;             // output: number of accepted tokens
    int32_t tested;               // output: number of tested tokens, of a sampled row
    int32_t positions;            // output: number of tested positions, of a sampled row
    int32_t last;                 // output: correction, bonus or plain token; -1 if a logit is NaN
    int32_t left;                 // tokens that the row may yet emit; matters to the rounds after the first
    int32_t* path;                // [most], output: accepted nodes
    float *p, *q_of;              // [most], output of a sampled row: p(x) and q(x) of every tested token, in order
    float* beta;                  // [most], output of a sampled row: beta per position; for chains the sum of min(p, q)
    float* logits;                // [K + 1, vocabulary], after each node; output of `sk_round`, valid until the next
    const int32_t* best;          // [K + 1, best_count], likeliest tokens; output of `sk_round`, valid until the next
};

struct sk_rows {
    int64_t count;
    sk_row* rows;
    int64_t most;  // room for tokens of a draft
    int64_t vocabulary, support;
    const int64_t* tokens;  // [support], the draft vocabulary; null for all tokens
    const int64_t* places;  // [vocabulary], index of each token in the draft vocabulary
    int64_t best_count;     // at least 1 if a row accepts the likeliest tokens
    int32_t branches;       // draws per position
    int32_t accept_stream, last_stream;  // of the random numbers
    int32_t threads;
};

// Drafts that grow, one pass over all rows and their drafts, and the verdicts.
struct sk_round {
    sk_rows rows;
    sk_growing* growing;  // the drafts of all rows; null if they are given
    int64_t tap_count;
    const int32_t* taps;  // as in `sk_batch`
    float* tapped;        // [nodes of all rows, tap_count, hidden], output, valid until the next round
    int64_t steps;        // output: draft steps of drafts that have grown
    double growing_s;     // output: seconds until the drafts had grown
    double seconds;       // output: seconds that the round took, what follows the one before included
};

struct sk_decoder;
struct sk_head;
struct sk_drafter;  // a head, or a decoder that drafts for others: it grows trees

SK_EXPORT int32_t sk_abi(void);
SK_EXPORT const char* sk_error(void);
SK_EXPORT int32_t sk_variants(void);            // mask of sk_variant_id that this processor can run
SK_EXPORT int32_t sk_use(int32_t variant);      // for the whole process; -1 for the fastest
SK_EXPORT const char* sk_variant(void);         // name of the variant in use
SK_EXPORT const char* sk_notice(void);          // instructions of the processor that are not used, and why; empty if none
// Sets the maximum number of threads, also of a running call; 0: no limit. Results are bit-identical.
SK_EXPORT void sk_limit_threads(int32_t threads);
SK_EXPORT int64_t sk_packed_bytes(int32_t format, int64_t rows, int64_t columns);  // -1: cannot be packed
SK_EXPORT int32_t sk_pack(int32_t format, int64_t rows, int64_t columns, const void* codes, const void* scale,
                          const uint16_t* minimum, const void* sub_scale, const uint8_t* sub_minimum, void* packed);
// Quantises BF16, F16 or F32 weights in groups of 32, to the arrays of SK_Q8, or of SK_Q4 if `minimum` is not null.
SK_EXPORT void sk_quantize(int32_t format, const void* values, int64_t groups, void* codes, uint16_t* scale,
                           uint16_t* minimum);
SK_EXPORT int32_t sk_unpack(const sk_matrix* matrix, const int64_t* rows, int64_t count, float* out);
SK_EXPORT int32_t sk_pick(const sk_matrix* matrix, const int64_t* rows, int64_t count, void* packed);  // some rows
SK_EXPORT int32_t sk_linear(const sk_matrix* matrix, const float* bias, const float* x, int64_t tokens, float* y,
                            int32_t threads);
SK_EXPORT sk_decoder* sk_decoder_new(const sk_model* model);
SK_EXPORT void sk_decoder_free(sk_decoder* decoder);
// The cache of every layer
SK_EXPORT int32_t sk_decoder_attach(sk_decoder* decoder, const sk_tables* tables, const sk_cache* layers);
// What a slot knows of recurrent layers, float32, null for other layers; owned by the caller. A ring [slots, ring, update]
// has what the token at position p adds in row p % ring: the inputs of the convolution [channels], and, but of a short
// convolution, keys, deltas and decays. `stored` [slots, value heads, key size, value size] is the state after lengths[slot]
// tokens, 0 at the beginning; a pass advances it to commits[slot], and lengths[slot] with it.
SK_EXPORT int32_t sk_decoder_attach_recurrent(sk_decoder* decoder, int32_t ring, float* const* rings,
                                              float* const* stored, int32_t* lengths, const int32_t* commits);
SK_EXPORT int32_t sk_decoder_pass(sk_decoder* decoder, const sk_batch* batch);
// Copies columns of a slot, in ascending order, to `target` and the columns after it; none lies before its target.
SK_EXPORT int32_t sk_decoder_move(sk_decoder* decoder, int32_t slot, const int32_t* sources, int64_t count, int32_t target);
// Runs up to `count` rounds one after the other; how many were run, 0 if one fails. The first is given; of the
// others, the caller sets the memory for output. They draft as the first does, and end with the first round in which a row
// is held, emits one of `ends` or all that is left to it, or has a logit that is NaN. After every round but the last, the
// accepted columns are moved, and `drafter`, if it is not null, has taken them in: a head has read their hidden states, a
// decoder has moved their columns in its own cache.
SK_EXPORT int32_t sk_rounds_run(sk_decoder* decoder, sk_drafter* drafter, sk_round* rounds, int64_t count, const int64_t* ends,
                                int64_t end_count);
SK_EXPORT sk_drafter* sk_decoder_drafter(sk_decoder* decoder);  // lives as long as the decoder
SK_EXPORT sk_head* sk_head_new(const sk_head_model* model);
SK_EXPORT void sk_head_free(sk_head* head);
SK_EXPORT sk_head* sk_block_new(const sk_block_model* model);  // a head that takes no single steps
// float32 [blocks, 32, hidden] of states, owned by the caller, null for a block drafter; and the caches of its layers
SK_EXPORT int32_t sk_head_attach(sk_head* head, const sk_tables* tables, float* states, const sk_cache* caches);
// Computes and stores the head's states from hidden states of the target.
SK_EXPORT int32_t sk_head_absorb(sk_head* head, int64_t count, const sk_read* read, int32_t threads);
// The same of each row's last token and its accepted tokens, once all rows of the round have been judged.
SK_EXPORT int32_t sk_head_absorb_round(sk_head* head, const sk_round* round);
SK_EXPORT int32_t sk_head_run(sk_head* head, const sk_head_step* step);
SK_EXPORT sk_drafter* sk_head_drafter(sk_head* head);  // lives as long as the head
SK_EXPORT int32_t sk_grow(sk_drafter* drafter, sk_growing* growing);  // drafter: null where texts alone draft
// What a text continues with where it repeats, [1 + 2 * most]: tokens of the match, then up to `most` tokens, -1 after the
// last, and their grades.
SK_EXPORT int32_t sk_continue_text(const int64_t* text, int64_t count, int64_t most, int64_t* found);
SK_EXPORT int32_t sk_judge(sk_rows* rows);  // rows that are not held, by logits that are given
