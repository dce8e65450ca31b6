#include "kernels/attention.hpp"

#include "kernels/attention_kernels.hpp"
#include "kernels/matmul.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <vector>

namespace paceline {
namespace {

constexpr int kTaken = 32;  // rows that a thread rotates and stores at once
constexpr int kRoom = 48;   // for a number per query, in whole vectors
static_assert(kRoom % kLanes == 0 && kRoom >= kQueryRows);

// Some rows of a group, under one head of keys: a part of so many.
struct Piece {
    int64_t item;  // group * heads of keys + head
    int64_t part, parts;
};

// The same work for every thread: whole items, and parts of those that are left over.
struct Pieces {
    int64_t items, threads, whole, parts, count;

    Pieces(int64_t items, int64_t threads)
        : items(items), threads(threads), whole(items / threads) {
        const int64_t over = items % threads;
        parts = threads / std::gcd(over, threads);
        count = threads * (whole + over * parts / threads);
    }

    // Pieces of a thread are consecutive.
    Piece operator[](int64_t i) const {
        const int64_t each = count / threads, thread = i / each, at = i % each;
        if (at < whole) return {thread * whole + at, 0, 1};
        const int64_t part = thread * (each - whole) + at - whole;
        return {threads * whole + part / parts, part % parts, parts};
    }
};

template <class Number>
class Pass {
   public:
    Pass(const Shape& shape, const Layer& layer, VisibleKeys& visible, Asked asked, const Output& out)
        : shape_(shape),
          layer_(layer),
          visible_(visible),
          groups_(asked == Asked::kLast ? visible.lasts : visible.groups),
          plan_(visible.plan),
          out_(out),
          stores_(asked != Asked::kLent),
          queries_(asked == Asked::kNone ? 0 : shape.heads),
          ratio_(shape.heads / shape.kv_heads),
          block_size_(int64_t{kBlock} * shape.width) {}

    void run(Rows<const float> qkv) {
        const int64_t rows = plan_.count, parts = (rows + kTaken - 1) / kTaken;
        // Keys of neighbouring rows lie in one line of the cache: a thread takes a head of them
        // all.
        each(stores_ ? parts * shape_.kv_heads : 0, rows > 3, [&](int64_t i) {
            const int64_t first = i / shape_.kv_heads * kTaken;
            take_in(first, std::min(first + kTaken, rows), int(i % shape_.kv_heads), qkv);
        });
        if (queries_ == 0) return;
        const int64_t groups = int64_t(groups_.size());
        const Pieces pieces(groups * shape_.kv_heads, Pool::shared().threads());
        const int64_t asked = &groups_ == &visible_.groups ? rows : groups;
        if (visible_.chunks == 1 || pieces.whole >= 4 || asked >= groups * pieces.parts) {
            each(pieces.count, true, [&](int64_t i) { whole(pieces, i, qkv); });
        } else {
            split(pieces.items, visible_.chunks, qkv);
        }
    }

   private:
    Row row(int64_t r) const { return row_of(plan_, r); }

    // One head of a row, normed if there is a norm, and rotated.
    void rotate(const float* x, const float* norm, int position, float factor, float* to) const {
        const int half = shape_.rotated / 2;
        const float* cosine = layer_.angles + int64_t{position} * shape_.rotated;
        const float* sine = cosine + half;
        float normed[kWidest];
        if (norm != nullptr) {
            const float scale = norm_factor(x, shape_.width, shape_.eps);
            for (int d = 0; d < shape_.width; ++d) normed[d] = x[d] * scale * norm[d];
            x = normed;
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
        for (d = 2 * half; d < shape_.width; ++d) to[d] = x[d] * factor;
    }

    Number* key_block(int block, int head) const {
        return static_cast<Number*>(layer_.keys) +
               (int64_t{block} * shape_.kv_heads + head) * block_size_;
    }
    Number* value_block(int block, int head) const {
        return static_cast<Number*>(layer_.values) +
               (int64_t{block} * shape_.kv_heads + head) * block_size_;
    }

    // A group's queries that belong to a head of keys, rotated: row after row.
    const float* turned(const Group& group, int kv_head, Rows<const float> qkv) const {
        alignas(64) thread_local float queries[kQueryRows * kWidest];
        float* to = queries;
        for (int r = group.first; r < group.first + group.count; ++r) {
            const int position = row(r).position;
            const float* more = layer_.query_factors;
            const float scale = more ? shape_.scale * more[position] : shape_.scale;
            for (int h = kv_head * ratio_; h < (kv_head + 1) * ratio_; ++h, to += shape_.width) {
                rotate(qkv[r] + h * shape_.width, layer_.query_norm, position, scale, to);
            }
        }
        return queries;
    }

    // Rotates and stores rows' keys of a head, stores their values.
    void take_in(int64_t first, int64_t behind, int head, Rows<const float> qkv) {
        const int width = shape_.width;
        float rotated[kWidest];
        for (int64_t r = first; r < behind; ++r) {
            const Row at = row(r);
            const int block = at.slot / kBlock, place = at.slot % kBlock;
            const float* key = qkv[r] + (queries_ + head) * width;
            rotate(key, layer_.key_norm, at.position, 1.0f, rotated);
            const float* value = key + shape_.kv_heads * width;
            const float scale = shape_.value_norm ? norm_factor(value, width, shape_.eps) : 1.0f;
            Number *keys = key_block(block, head), *values = value_block(block, head);
            for (int d = 0; d < width; ++d) {
                put(rotated[d], keys[d * kBlock + place]);
                put(value[d] * scale, values[place * width + d]);
            }
        }
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
            const Number* keys = key_block(plan_.tables[row(group.first).table + b], head);
            all_scores(queries, count, shape_.width, &keys, 1, &scores[(b - first) * kBlock], stride);
        }
    }

    // Where a chunk's keys are that lie in storage order, and their values.
    struct Stored {
        int run = 0, blocks = 0;
        const Number* keys[kChunk / kBlock];
        const Number* values[kChunk / kBlock];
    };

    Stored stored(const Group& group, int head, int index) const {
        Stored out;
        const int begin = index * kChunk;
        out.run = std::clamp(group.longest_run - begin, 0, kChunk);
        out.blocks = (out.run + kBlock - 1) / kBlock;
        const int32_t* table = plan_.tables + row(group.first).table + begin / kBlock;
        for (int b = 0; b < out.blocks; ++b) {
            out.keys[b] = key_block(table[b], head);
            out.values[b] = value_block(table[b], head);
        }
        return out;
    }

    Prefetch<Number> prefetch(const Number* const* blocks, int count) const {
        return {blocks, count, block_size_};
    }

    // One chunk of keys for a group and kv head. `next` follows on this thread and is prefetched:
    // blocks are too short for the hardware prefetcher.
    void chunk(const Group& group, int head, int index, const float* queries, const Partial& to,
               const Stored& here, const Stored& next) {
        const int width = shape_.width, count = group.count * ratio_;
        const int begin = index * kChunk, run = here.run, blocks = here.blocks;
        alignas(64) float scores[kQueryRows * kChunk];
        all_scores(queries, count, width, here.keys, blocks, scores, kChunk,
                   prefetch(here.values, blocks));
        const auto [first, behind] = group.single_blocks;
        const bool singles = first < behind && begin + kChunk > group.shortest_run;
        std::vector<float> single_scores;
        if (singles) score_singles(group, head, queries, single_scores);
        alignas(64) float alone[kQueryRows * kChunk];  // weights of what is summed apart
        weigh(group, begin, blocks * kBlock, single_scores.data(), scores, alone, to);
        std::memset(to.values, 0, sizeof(float) * count * width);
        add_values(scores, count, kChunk, here.values, run, width, to.values,
                   prefetch(next.keys, next.blocks));
        for (int r = 0; singles && r < group.count; ++r) {
            add_apart(row(group.first + r), head, begin, alone + r * ratio_ * kChunk,
                      to.values + r * ratio_ * width);
        }
    }

    // Keys of a row's path up to where its window counts from.
    int newest(const Row& at) const {
        return shape_.own ? std::min(at.total, at.position + 1) : at.total;
    }

    // Softmax weights of a chunk's first `keys` scores; those of single tokens are set aside.
    void weigh(const Group& group, int begin, int keys, const float* single_scores, float* scores,
               float* alone, const Partial& to) const {
        const auto [first, behind] = group.single_blocks;
        const auto of = [&](int r) { return row(group.first + r / ratio_); };
        const auto seen_by = [&](const Row& at) { return std::clamp(at.total - begin, 0, kChunk); };
        // Keys in front of the window.
        const auto hidden = [&](const Row& at) {
            return shape_.window ? std::clamp(newest(at) - shape_.window - begin, 0, seen_by(at)) : 0;
        };
        // The highest of all queries first: a query alone waits for its own most of the time.
        for (int r = 0; r < group.count * ratio_; ++r) {
            const Row at = of(r);
            float* s = scores + r * kChunk;
            const int seen = seen_by(at);
            for (int j = std::clamp(at.run - begin, 0, kChunk); j < seen; ++j) {
                const int stored = single(at, begin + j) - first * kBlock;
                s[j] = single_scores[r * (behind - first) * kBlock + stored];
            }
            to.highest[r] = highest_score(s, hidden(at), seen, keys);
        }
        for (int r = 0; r < group.count * ratio_; ++r) {
            const Row at = of(r);
            float* s = scores + r * kChunk;
            const int seen = seen_by(at);
            to.weight[r] = soften(s, seen, to.highest[r]);
            if (const int apart = first_apart(at, begin); apart < seen) {
                std::copy(s + apart, s + seen, alone + r * kChunk);
                std::fill(s + apart, s + seen, 0.0f);
            }
        }
    }

    // Where in a chunk the single tokens begin.
    static int first_apart(const Row& at, int begin) { return std::clamp(at.run - begin, 0, kChunk); }

    // Adds those tokens of a chunk, weighted, to the sums of a row's queries.
    void add_apart(const Row& at, int head, int begin, const float* weights, float* sums) const {
        const int first = first_apart(at, begin);
        const int count = std::min(at.total - begin, kChunk) - first;
        if (count <= 0) return;
        thread_local std::vector<Number> memory;
        memory.assign((count + kBlock - 1) / kBlock * block_size_, Number(0));
        const Number* blocks[kChunk / kBlock];
        for (int b = 0; b < kChunk / kBlock; ++b) blocks[b] = memory.data() + b * block_size_;
        for (int j = 0; j < count; ++j) {
            const int stored = single(at, begin + first + j);
            const int block = plan_.tables[at.table + stored / kBlock];
            std::copy_n(value_block(block, head) + stored % kBlock * shape_.width, shape_.width,
                        memory.data() + j / kBlock * block_size_ + j % kBlock * shape_.width);
        }
        add_values(weights, ratio_, kChunk, blocks, count, shape_.width, sums);
    }

    int64_t partial_size() const { return int64_t{kQueryRows} * shape_.width + 2 * kRoom; }

    // The first chunk that a row of the group sees.
    int first_chunk(const Group& group) const {
        int least = shape_.window ? group.longest : 0;
        for (int r = 0; shape_.window && r < group.count; ++r) {
            least = std::min(least, newest(row(group.first + r)) - shape_.window);
        }
        return std::max(least, 0) / kChunk;
    }

    // All chunks of a group and head, put together.
    void finish(const Group& group, int head, float* partials) {
        const int begin_chunk = first_chunk(group);
        const auto part = [&](int c) { return partial(partials + (begin_chunk + c) * partial_size()); };
        float sinks[kRoom] = {};
        for (int r = 0; layer_.sinks && r < group.count * ratio_; ++r) {
            sinks[r] = layer_.sinks[head * ratio_ + r % ratio_];
        }
        combine(group.chunks() - begin_chunk, group.count * ratio_, shape_.width,
                layer_.sinks ? sinks : nullptr, part);
        const float* from = part(0).values;
        const int width = ratio_ * shape_.width, begin = head * width;
        for (int r = group.first; r < group.first + group.count; ++r, from += width) {
            if (!out_.quantized) {
                std::memcpy(out_.floats[r] + begin, from, sizeof(float) * width);
                continue;
            }
            for (int at = 0; at < width; at += kGroup) {
                quantize_group(from + at, out_.quantized->group((begin + at) / kGroup)[r]);
            }
        }
    }

    static Partial partial(float* at) { return {at, at + kRoom, at + 2 * kRoom}; }

    // One head of a part of a group's rows, chunk after chunk.
    void whole(const Pieces& pieces, int64_t i, Rows<const float> qkv) {
        const Piece piece = pieces[i];
        const Group group = some(groups_[piece.item / shape_.kv_heads], piece);
        if (group.count == 0) return;
        const int head = int(piece.item % shape_.kv_heads);
        const float* queries = turned(group, head, qkv);
        thread_local std::vector<float> memory;
        memory.resize(group.chunks() * partial_size());
        const int begin = first_chunk(group);
        Stored here = stored(group, head, begin);
        for (int c = begin; c < group.chunks(); ++c) {
            Stored next;
            if (c + 1 < group.chunks()) {
                next = stored(group, head, c + 1);
            } else if (i + 1 < pieces.count && pieces[i + 1].item != piece.item) {
                const int64_t item = pieces[i + 1].item;
                next = stored(groups_[item / shape_.kv_heads], int(item % shape_.kv_heads), 0);
            }
            const Partial to = partial(memory.data() + c * partial_size());
            chunk(group, head, c, queries, to, here, next);
            here = next;
        }
        finish(group, head, memory.data());
    }

    // Some rows of a group; they see what the group sees.
    static Group some(Group group, const Piece& piece) {
        const int begin = int(piece.part * group.count / piece.parts);
        group.count = int((piece.part + 1) * group.count / piece.parts) - begin;
        group.first += begin;
        return group;
    }

    // All chunks of all groups and heads at once, then put together.
    void split(int64_t items, int chunks, Rows<const float> qkv) {
        visible_.partial.resize(items * chunks * partial_size());
        const auto here = [&](int64_t i) {
            const int64_t item = i / chunks;
            const Group& group = groups_[item / shape_.kv_heads];
            return stored(group, int(item % shape_.kv_heads), int(i % chunks));
        };
        each(items * chunks, true, [&](int64_t i) {
            const Group& group = groups_[i / chunks / shape_.kv_heads];
            const int head = int(i / chunks % shape_.kv_heads);
            if (i % chunks >= group.chunks() || i % chunks < first_chunk(group)) return;
            const Partial to = partial(visible_.partial.data() + i * partial_size());
            chunk(group, head, int(i % chunks), turned(group, head, qkv), to, here(i),
                  i + 1 < items * chunks ? here(i + 1) : Stored());
        });
        each(items, chunks > 8, [&](int64_t item) {
            finish(groups_[item / shape_.kv_heads], int(item % shape_.kv_heads),
                   visible_.partial.data() + item * chunks * partial_size());
        });
    }

    const Shape& shape_;
    const Layer& layer_;
    VisibleKeys& visible_;
    const std::vector<Group>& groups_;
    const Plan& plan_;
    const Output out_;
    const bool stores_;
    const int queries_;  // heads of queries before a row's keys
    const int ratio_;  // query heads per kv head
    const int64_t block_size_;
};

}  // namespace

void attention(const Shape& shape, const Layer& layer, VisibleKeys& visible, Asked asked,
               Rows<const float> qkv, const Output& out) {
    if (shape.kv_dtype == KvDtype::kFp32) {
        Pass<float>(shape, layer, visible, asked, out).run(qkv);
    } else {
        Pass<Half>(shape, layer, visible, asked, out).run(qkv);
    }
}

}  // namespace paceline
