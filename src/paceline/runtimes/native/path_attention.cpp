#include "path_attention.hpp"

#include "pool.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

namespace paceline {
namespace {

constexpr int kChunk = 128;     // keys that are summed together, by place in the path
constexpr int kQueryRows = 24;  // query heads times rows that share loads of keys and values
constexpr float kNone = -std::numeric_limits<float>::infinity();

// Scores of N queries over the 32 keys of a block: one sum per key, over the width in order.
template <int N, class Stored>
void block_scores(const float* queries, int width, const Stored* keys, float* scores, int stride) {
    Vec a[N][2] = {};
    for (int d = 0; d < width; ++d) {
        const Vec low = load(keys + d * kBlock), high = load(keys + d * kBlock + kLanes);
        for (int r = 0; r < N; ++r) {
            const Vec q = all(queries[r * width + d]);
            a[r][0] += q * low;
            a[r][1] += q * high;
        }
    }
    for (int r = 0; r < N; ++r) {
        store(scores + r * stride, a[r][0]);
        store(scores + r * stride + kLanes, a[r][1]);
    }
}

// Adds V * 16 numbers of consecutive stored values, weighted, to N rows of `sums`, one by one in
// order.
template <int N, int V, class Stored>
void add_slice(const float* weights, int stride, const Stored* const* blocks, int count, int width,
               int at, float* sums) {
    Vec a[N][V];
    for (int r = 0; r < N; ++r) {
        for (int v = 0; v < V; ++v) a[r][v] = load(sums + r * width + at + v * kLanes);
    }
    for (int begin = 0; begin < count; begin += kBlock) {
        const Stored* value = blocks[begin / kBlock] + at;
        const int end = std::min(begin + kBlock, count);
        for (int j = begin; j < end; ++j, value += width) {
            Vec x[V];
            for (int v = 0; v < V; ++v) x[v] = load(value + v * kLanes);
            for (int r = 0; r < N; ++r) {
                const Vec w = all(weights[r * stride + j]);
                for (int v = 0; v < V; ++v) a[r][v] += w * x[v];
            }
        }
    }
    for (int r = 0; r < N; ++r) {
        for (int v = 0; v < V; ++v) store(sums + r * width + at + v * kLanes, a[r][v]);
    }
}

// The same over the whole width, a multiple of 16.
template <int N, class Stored>
void add_values(const float* weights, int stride, const Stored* const* blocks, int count,
                int width, float* sums) {
    int at = 0;
    for (; at + 4 * kLanes <= width; at += 4 * kLanes) {
        add_slice<N, 4>(weights, stride, blocks, count, width, at, sums);
    }
    for (; at < width; at += kLanes) {
        add_slice<N, 1>(weights, stride, blocks, count, width, at, sums);
    }
}

// Has numbers fetched that will be read soon.
template <class Stored>
void ask(const Stored* at, int64_t count) {
    for (int64_t i = 0; i < count; i += 64 / sizeof(Stored)) __builtin_prefetch(at + i);
}

struct Row {
    int32_t position, slot, table, run, singles;
    int total() const { return position + 1; }
};

Row row_of(const Plan& plan, int64_t r) {
    const int32_t* at = plan.rows + r * kRowFields;
    return {at[0], at[1], at[2], at[3], at[4]};
}

int chunks_of(const Group& group) { return (group.longest + kChunk - 1) / kChunk; }

// What a chunk of keys comes to: per query its highest score, the sum of weights relative to it,
// and the weighted sum of values.
struct Partial {
    float *highest, *weight, *values;
};

// Joins the sums over a later chunk to those over earlier ones.
void merge(const Partial& into, const Partial& later, int queries, int width) {
    for (int r = 0; r < queries; ++r) {
        if (later.weight[r] == 0) continue;
        const float highest = std::max(into.highest[r], later.highest[r]);
        const float a = exponential(into.highest[r] - highest);
        const float b = exponential(later.highest[r] - highest);
        into.highest[r] = highest;
        into.weight[r] = into.weight[r] * a + later.weight[r] * b;
        float* x = into.values + r * width;
        const float* y = later.values + r * width;
        for (int d = 0; d < width; d += kLanes) {
            store(x + d, load(x + d) * a + load(y + d) * b);
        }
    }
}

template <class Stored>
class Pass {
   public:
    Pass(const Shape& shape, const Layer& layer, Paths& paths, Rows<float> out)
        : shape_(shape),
          layer_(layer),
          paths_(paths),
          plan_(paths.plan),
          out_(out),
          ratio_(shape.heads / shape.kv_heads),
          block_size_(int64_t{kBlock} * shape.width) {}

    void run(Rows<const float> qkv) {
        const int64_t rows = plan_.count;
        paths_.queries.resize(rows * shape_.heads * shape_.width);
        each(rows, rows > 3, [&](int64_t r) { enter(r, qkv); });
        const int64_t items = int64_t(paths_.groups.size()) * shape_.kv_heads;
        const int threads = Pool::shared().threads();
        if (items >= 4 * threads || paths_.chunks == 1) {
            each(items, true, [&](int64_t item) { whole(item); });
        } else {
            split(items, paths_.chunks);
        }
    }

   private:
    Row row(int64_t r) const { return row_of(plan_, r); }

    // One head of a row, normed if there is a norm, and rotated.
    void rotate(const float* x, const float* norm, int position, float factor, float* to) const {
        const int half = shape_.width / 2;
        const float* cosine = layer_.angles + int64_t{position} * shape_.width;
        const float* sine = cosine + half;
        std::vector<float> normed;
        if (norm != nullptr) {
            float square = 0;
            for (int d = 0; d < shape_.width; ++d) square += x[d] * x[d];
            const float scale = 1.0f / std::sqrt(square / shape_.width + shape_.eps);
            normed.resize(shape_.width);
            for (int d = 0; d < shape_.width; ++d) normed[d] = x[d] * scale * norm[d];
            x = normed.data();
        }
        int d = 0;
        for (; d + kLanes <= half; d += kLanes) {
            const Vec low = load(x + d), high = load(x + d + half);
            const Vec c = load(cosine + d), s = load(sine + d);
            store(to + d, (low * c - high * s) * factor);
            store(to + d + half, (high * c + low * s) * factor);
        }
        for (; d < half; ++d) {
            to[d] = (x[d] * cosine[d] - x[d + half] * sine[d]) * factor;
            to[d + half] = (x[d + half] * cosine[d] + x[d] * sine[d]) * factor;
        }
    }

    Stored* key_block(int block, int head) const {
        return static_cast<Stored*>(layer_.keys) +
               (int64_t{block} * shape_.kv_heads + head) * block_size_;
    }
    Stored* value_block(int block, int head) const {
        return static_cast<Stored*>(layer_.values) +
               (int64_t{block} * shape_.kv_heads + head) * block_size_;
    }

    // Rotates a row's queries; rotates and stores its keys, stores its values.
    void enter(int64_t r, Rows<const float> qkv) {
        const Row at = row(r);
        const int width = shape_.width;
        const float* x = qkv[r];
        const float factor = 1.0f / std::sqrt(float(width));
        for (int h = 0; h < shape_.heads; ++h) {
            rotate(x + h * width, layer_.query_norm, at.position, factor, query(r, h));
        }
        x += shape_.heads * width;
        const int block = at.slot / kBlock, place = at.slot % kBlock;
        std::vector<float> key(width);
        for (int h = 0; h < shape_.kv_heads; ++h) {
            rotate(x + h * width, layer_.key_norm, at.position, 1.0f, key.data());
            Stored* column = key_block(block, h) + place;
            for (int d = 0; d < width; ++d) column[d * kBlock] = Stored(key[d]);
            const float* value = x + (shape_.kv_heads + h) * width;
            Stored* line = value_block(block, h) + place * width;
            for (int d = 0; d < width; ++d) line[d] = Stored(value[d]);
        }
    }

    // Queries lie [kv head][row][query head of the kv head], so that a group's are in one run.
    float* query(int64_t r, int head) {
        const int64_t at = (int64_t{head / ratio_} * plan_.count + r) * ratio_ + head % ratio_;
        return paths_.queries.data() + at * shape_.width;
    }

    // One chunk of keys for the rows of a group and one head of keys.
    void chunk(const Group& group, int head, int index, const Partial& to) {
        const int width = shape_.width, queries = group.count * ratio_;
        const int begin = index * kChunk;
        const int run = std::min(group.longest_run - begin, kChunk);  // keys in storage order
        const Row lead = row(group.first);
        const int32_t* table = plan_.tables + lead.table + begin / kBlock;
        const float* q = query(group.first, head * ratio_);
        alignas(64) float scores[kQueryRows * kChunk];
        alignas(64) float alone[kQueryRows * kChunk];  // weights of single tokens
        const Stored* values[kChunk / kBlock];
        for (int b = 0; b * kBlock < run; ++b) {
            values[b] = value_block(table[b], head);
            const Stored* keys = key_block(table[b], head);
            // Blocks lie apart, each too short for the processor to see where reading goes.
            if ((b + 1) * kBlock < run) ask(key_block(table[b + 1], head), block_size_);
            ask(values[b], std::min(run - b * kBlock, kBlock) * int64_t{width});
            by_rows<6>(queries, [&](auto n, int first) {
                block_scores<n>(q + first * width, width, keys,
                                scores + first * kChunk + b * kBlock, kChunk);
            });
        }
        const int first_single = group.single_blocks[0] * kBlock;
        const int single_stride = group.single_blocks[1] * kBlock - first_single;
        std::vector<float> single_scores;
        if (single_stride > 0 && begin + kChunk > group.shortest_run) {
            single_scores.resize(queries * single_stride);
            for (int b = 0; b * kBlock < single_stride; ++b) {
                const int block = plan_.tables[lead.table + group.single_blocks[0] + b];
                by_rows<6>(queries, [&](auto n, int first) {
                    block_scores<n>(q + first * width, width, key_block(block, head),
                                    single_scores.data() + first * single_stride + b * kBlock,
                                    single_stride);
                });
            }
        }
        for (int r = 0; r < queries; ++r) {
            const Row at = row(group.first + r / ratio_);
            float* s = scores + r * kChunk;
            const int in_run = std::clamp(at.run - begin, 0, kChunk);
            const int count = std::clamp(at.total() - begin, 0, kChunk);
            for (int j = in_run; j < count; ++j) {
                const int stored = plan_.singles[at.singles + begin + j - at.run];
                s[j] = single_scores[r * single_stride + stored - first_single];
            }
            const int ends = (count + kLanes - 1) / kLanes * kLanes;
            for (int j = count; j < ends; ++j) s[j] = kNone;
            for (int j = ends; j < run; ++j) s[j] = 0;  // keys that other rows see
            to.highest[r] = kNone;
            to.weight[r] = 0;
            if (count == 0) continue;
            Vec top = load(s);
            for (int j = kLanes; j < ends; j += kLanes) {
                const Vec x = load(s + j);
                top = x > top ? x : top;
            }
            const float highest = largest(top);
            to.highest[r] = highest;
            Vec weight = {};
            for (int j = 0; j < ends; j += kLanes) {
                const Vec x = load(s + j);
                const Vec e = x == kNone ? all(0.0f) : exponential(x - highest);
                weight += e;
                store(s + j, e);
            }
            to.weight[r] = sum(weight);
            // Single tokens are added after the run, which other rows may have longer.
            for (int j = in_run; j < count; ++j) {
                alone[r * kChunk + j] = s[j];
                s[j] = 0;
            }
        }
        std::memset(to.values, 0, sizeof(float) * queries * width);
        if (run > 0) {
            by_rows<6>(queries, [&](auto n, int first) {
                add_values<n>(scores + first * kChunk, kChunk, values, run, width,
                              to.values + first * width);
            });
        }
        for (int r = 0; r < group.count; ++r) {
            const Row at = row(group.first + r);
            const int count = std::min(at.total() - begin, kChunk);
            for (int j = std::max(at.run - begin, 0); j < count; ++j) {
                const int stored = plan_.singles[at.singles + begin + j - at.run];
                const int block = plan_.tables[at.table + stored / kBlock];
                const Stored* value = value_block(block, head) + (stored % kBlock) * width;
                by_rows<6>(ratio_, [&](auto n, int first) {
                    const int at_query = r * ratio_ + first;
                    add_values<n>(alone + at_query * kChunk + j, kChunk, &value, 1, width,
                                  to.values + at_query * width);
                });
            }
        }
    }

    void finish(const Group& group, int head, const Partial& sums) {
        for (int r = 0; r < group.count * ratio_; ++r) {
            const int64_t row = group.first + r / ratio_;
            const int query_head = head * ratio_ + r % ratio_;
            float* to = out_[row] + query_head * shape_.width;
            const float factor = 1.0f / sums.weight[r];
            for (int d = 0; d < shape_.width; d += kLanes) {
                store(to + d, load(sums.values + r * shape_.width + d) * factor);
            }
        }
    }

    int64_t partial_size() const { return int64_t{kQueryRows} * (shape_.width + 2); }

    static Partial partial(float* at) {
        return {at, at + kQueryRows, at + 2 * kQueryRows};
    }

    // One group and head, chunk after chunk.
    void whole(int64_t item) {
        const Group& group = paths_.groups[item / shape_.kv_heads];
        const int head = int(item % shape_.kv_heads);
        thread_local std::vector<float> memory;
        memory.resize(2 * partial_size());
        const Partial sums = partial(memory.data()), next = partial(memory.data() + partial_size());
        chunk(group, head, 0, sums);
        for (int c = 1; c < chunks_of(group); ++c) {
            chunk(group, head, c, next);
            merge(sums, next, group.count * ratio_, shape_.width);
        }
        finish(group, head, sums);
    }

    // All chunks of all groups and heads at once, then put together in order.
    void split(int64_t items, int chunks) {
        paths_.partial.resize(items * chunks * partial_size());
        const auto part = [&](int64_t item, int64_t c) {
            return partial(paths_.partial.data() + (item * chunks + c) * partial_size());
        };
        each(items * chunks, true, [&](int64_t i) {
            const Group& group = paths_.groups[i / chunks / shape_.kv_heads];
            if (i % chunks < chunks_of(group)) {
                chunk(group, int(i / chunks % shape_.kv_heads), int(i % chunks),
                      part(i / chunks, i % chunks));
            }
        });
        each(items, chunks > 8, [&](int64_t item) {
            const Group& group = paths_.groups[item / shape_.kv_heads];
            const Partial sums = part(item, 0);
            for (int c = 1; c < chunks_of(group); ++c) {
                merge(sums, part(item, c), group.count * ratio_, shape_.width);
            }
            finish(group, int(item % shape_.kv_heads), sums);
        });
    }

    const Shape& shape_;
    const Layer& layer_;
    Paths& paths_;
    const Plan& plan_;
    const Rows<float> out_;
    const int ratio_;
    const int64_t block_size_;
};

}  // namespace

void Paths::find(const Shape& shape, const Plan& given, int64_t longest) {
    plan = given;
    groups.clear();
    chunks = 0;
    const int most = std::max(1, kQueryRows / (shape.heads / shape.kv_heads));
    for (int r = 0; r < plan.count; ++r) {
        const Row at = row_of(plan, r);
        if (at.position >= longest) {
            throw std::out_of_range("a row stands behind the longest context of " +
                                    std::to_string(longest) + " tokens");
        }
        const bool joins = !groups.empty() && groups.back().first + groups.back().count == r &&
                           groups.back().count < most &&
                           row_of(plan, groups.back().first).table == at.table;
        if (!joins) groups.push_back({r, 0, 0, 0, at.run, {0, 0}});
        Group& group = groups.back();
        ++group.count;
        group.longest = std::max(group.longest, at.total());
        group.longest_run = std::max(group.longest_run, at.run);
        group.shortest_run = std::min(group.shortest_run, at.run);
        auto& [first, behind] = group.single_blocks;
        for (int i = 0; i < at.total() - at.run; ++i) {
            const int block = plan.singles[at.singles + i] / kBlock;
            first = first == behind ? block : std::min(first, block);
            behind = std::max(behind, block + 1);
        }
    }
    for (const Group& group : groups) chunks = std::max(chunks, chunks_of(group));
}

void path_attention(const Shape& shape, const Layer& layer, Paths& paths, Rows<const float> qkv,
                    Rows<float> out) {
    if (shape.half) {
        Pass<_Float16>(shape, layer, paths, out).run(qkv);
    } else {
        Pass<float>(shape, layer, paths, out).run(qkv);
    }
}

}  // namespace paceline
