#include "path_attention.hpp"

#include "attention_kernels.hpp"
#include "pool.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

namespace paceline {
namespace {

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

    // Where a single token of a row is stored, by its place in the path.
    int single(const Row& at, int place) const { return plan_.singles[at.singles + place - at.run]; }

    // Scores of a group's queries over all blocks with single tokens, [queries, blocks * 32].
    void score_singles(const Group& group, int head, const float* queries,
                       std::vector<float>& scores) const {
        const auto [first, behind] = group.single_blocks;
        const int count = group.count * ratio_, stride = (behind - first) * kBlock;
        scores.resize(count * stride);
        for (int b = first; b < behind; ++b) {
            const Stored* keys = key_block(plan_.tables[row(group.first).table + b], head);
            all_scores(queries, count, shape_.width, &keys, 1, &scores[(b - first) * kBlock], stride);
        }
    }

    // One chunk of keys for the rows of a group and one head of keys.
    void chunk(const Group& group, int head, int index, const Partial& to) {
        const int width = shape_.width, count = group.count * ratio_;
        const int begin = index * kChunk;
        const int run = std::clamp(group.longest_run - begin, 0, kChunk);  // keys in storage order
        const int blocks = (run + kBlock - 1) / kBlock;
        const int32_t* table = plan_.tables + row(group.first).table + begin / kBlock;
        const float* queries = query(group.first, head * ratio_);
        alignas(64) float scores[kQueryRows * kChunk];
        alignas(64) float alone[kQueryRows * kChunk];  // weights of single tokens
        const Stored* keys[kChunk / kBlock];
        const Stored* values[kChunk / kBlock];
        for (int b = 0; b < blocks; ++b) {
            keys[b] = key_block(table[b], head);
            values[b] = value_block(table[b], head);
            // Blocks lie apart, each too short for the processor to see where reading goes.
            ask(keys[b], block_size_);
            ask(values[b], std::min(run - b * kBlock, kBlock) * int64_t{width});
        }
        all_scores(queries, count, width, keys, blocks, scores, kChunk);
        std::vector<float> single_scores;
        const auto [first, behind] = group.single_blocks;
        const bool singles = first < behind && begin + kChunk > group.shortest_run;
        if (singles) score_singles(group, head, queries, single_scores);
        for (int r = 0; r < count; ++r) {
            const Row at = row(group.first + r / ratio_);
            float* s = scores + r * kChunk;
            const int in_run = std::clamp(at.run - begin, 0, kChunk);
            const int seen = std::clamp(at.total() - begin, 0, kChunk);
            for (int j = in_run; j < seen; ++j) {
                const int stored = single(at, begin + j) - first * kBlock;
                s[j] = single_scores[r * (behind - first) * kBlock + stored];
            }
            const Weights weights = soften(s, seen, run);
            to.highest[r] = weights.highest;
            to.weight[r] = weights.sum;
            // Single tokens are added after the run, which other rows may have longer.
            for (int j = in_run; j < seen; ++j) {
                alone[r * kChunk + j] = s[j];
                s[j] = 0;
            }
        }
        std::memset(to.values, 0, sizeof(float) * count * width);
        if (run > 0) {
            by_rows<6>(count, [&](auto n, int first) {
                add_values<n>(scores + first * kChunk, kChunk, values, run, width,
                              to.values + first * width);
            });
        }
        for (int r = 0; singles && r < group.count; ++r) {
            const Row at = row(group.first + r);
            const int seen = std::min(at.total() - begin, kChunk);
            for (int j = std::max(at.run - begin, 0); j < seen; ++j) {
                const int stored = single(at, begin + j);
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
        for (int c = 1; c < group.chunks(); ++c) {
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
            if (i % chunks < group.chunks()) {
                chunk(group, int(i / chunks % shape_.kv_heads), int(i % chunks),
                      part(i / chunks, i % chunks));
            }
        });
        each(items, chunks > 8, [&](int64_t item) {
            const Group& group = paths_.groups[item / shape_.kv_heads];
            const Partial sums = part(item, 0);
            for (int c = 1; c < group.chunks(); ++c) {
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

void path_attention(const Shape& shape, const Layer& layer, Paths& paths, Rows<const float> qkv,
                    Rows<float> out) {
    if (shape.half) {
        Pass<_Float16>(shape, layer, paths, out).run(qkv);
    } else {
        Pass<float>(shape, layer, paths, out).run(qkv);
    }
}

}  // namespace paceline
