// C interface of drafter network operations, beside `program.cpp`.

#include <algorithm>
#include <cstring>

#include "drafting/drafting.hpp"
#include "threads/program.hpp"
#include "sampling/rescore.hpp"

using namespace paceline;

extern "C" {

// See `Operand`.
struct OperandPart {
    View view;
    int32_t repeat, period;
    const float* weights;
};

constexpr int kPicked = 4;  // numbers that a step leaves, see `paceline_pick`

// Numbers that a run is given: an input's bits.
void paceline_load(Program* program, int32_t input, int64_t width, View to) {
    program->add([=](const Call& call) {
        const Rows<float> out = program->rows(to);
        const int64_t rows = program->count(to, call);
        each(rows, rows > 16, [&](int64_t r) {
            std::memcpy(out[r], call.inputs[input] + r * width, sizeof(float) * width);
        });
    });
}

void paceline_join(Program* program, int32_t joint, const OperandPart* first, const OperandPart* second,
                   int64_t width, View to) {
    const auto operand = [program](const OperandPart& part) {
        return Operand{program->read(part.view), part.repeat, part.period, part.weights};
    };
    program->add([=, a = *first, b = *second](const Call& call) {
        join(Joint(joint), program->count(to, call), width, operand(a), operand(b),
                     program->rows(to));
    });
}

// Rows of `before` numbers as rows of `width`, of which one is a multiple of the other.
void paceline_fold(Program* program, View from, int64_t before, int64_t width, View to) {
    program->add([=](const Call& call) {
        const Rows<const float> x = program->read(from);
        const Rows<float> out = program->rows(to);
        const int64_t part = std::min(before, width);
        for (int64_t at = 0; at < program->count(to, call) * width; at += part) {
            std::memcpy(out[at / width] + at % width, x[at / before] + at % before,
                        sizeof(float) * part);
        }
    });
}

// Writes id (int32 bits) and probability of argmax and runner-up. Rows are the next `slots` tokens
// of each sequence. Input `noise`, unless -1, holds `depth` records per sequence; these rows start
// at record `first`.
void paceline_pick(Program* program, View logits, int64_t width, const int32_t* ids, int32_t noise,
                   int32_t depth, int32_t first, int32_t slots, View to) {
    program->add([=](const Call& call) {
        const Rows<const float> x = program->read(logits);
        const Rows<float> out = program->rows(to);
        const int64_t rows = program->count(to, call);
        each(rows, rows > 1, [&](int64_t r) {
            Noise drawn = {};
            if (noise >= 0) {
                const int64_t record = r / slots * depth + first + r % slots;
                std::memcpy(&drawn, call.inputs[noise] + record * (sizeof drawn / 4), sizeof drawn);
            }
            const TopTwo found = drawn.sharpness > 0 ? top_two(x[r], width, ids, drawn)
                                                        : top_two(x[r], width);
            float* place = out[r];
            for (const Candidate& each : {found.first, found.second}) {
                std::memcpy(place, &ids[each.index], sizeof(int32_t));
                place[1] = each.chance;
                place += 2;
            }
        });
    });
}

// Stops the run if in every row the product of the first `steps` probabilities is below the float32
// of input `least`.
void paceline_leave(Program* program, View picked, int32_t steps, int32_t least) {
    program->add([=](const Call& call) {
        const Rows<const float> x = program->read(picked);
        for (int64_t r = 0; r < program->count(picked, call); ++r) {
            float enough, chance = 1;
            std::memcpy(&enough, call.inputs[least] + r, sizeof enough);
            for (int32_t step = 0; step < steps; ++step) chance *= x[r][kPicked * step + 1];
            if (!(chance < enough)) return;
        }
        program->stop();
    });
}

// See `rescore`; `hidden` is as wide as the head's rows.
void paceline_refine(Program* program, const Matrix* of, View hidden, int64_t width,
                     int64_t best, View logits) {
    program->add([=, head = *of](const Call& call) {
        const Rows<const float> x = program->read(hidden);
        const Rows<float> out = program->rows(logits);
        const int64_t rows = program->count(logits, call);
        each(rows, rows > 1, [&](int64_t r) { rescore(head, x[r], out[r], width, best); });
    });
}

// See `clustered`.
void paceline_clustered(Program* program, const Matrix* of, int64_t clusters, int64_t size,
                        const int32_t* tokens, int64_t best, View hidden, View scores,
                        View logits) {
    program->add([=, head = *of](const Call& call) {
        const Rows<const float> x = program->read(hidden), by = program->read(scores);
        const Rows<float> out = program->rows(logits);
        for (int64_t r = 0; r < program->count(logits, call); ++r) {
            clustered(head, clusters, size, tokens, best, x[r], by[r], out[r], program->scratch);
        }
    });
}

// How far rows of a run see: up to themselves, to the last of their slots, or to the newest
// context row.
enum class Upto : int32_t { kItself, kBlock, kContext };

// Sets the visible keys of plain runs. Input `sequences` holds per sequence its length, its new
// rows, the begin of its block table and the rows that have left it in front. Rows are the new ones,
// or `slots` rows from `first` after them; the first row of a sequence stands for those before it.
void paceline_runs(Program* program, const Shape* of, int64_t longest, int32_t sequences,
                   int32_t tables, int32_t count, int32_t first, int32_t slots, int32_t upto) {
    program->add([=, shape = *of, rows = std::vector<int32_t>()](const Call& call) mutable {
        rows.clear();
        const int32_t* blocks = call.inputs[tables];
        for (int64_t s = 0; s < call.counts[count]; ++s) {
            const int32_t* at = call.inputs[sequences] + 4 * s;
            const int32_t context = at[0] + at[1], begin = slots ? context + first : at[0];
            const int32_t end = slots ? begin + slots : context;
            for (int32_t row = begin; row < end; ++row) {
                const int32_t place = std::max(row, 0);
                const bool lent = Upto(upto) == Upto::kContext;  // its rows have no slot
                const int32_t seen = lent ? context : Upto(upto) == Upto::kBlock ? end : place + 1;
                const int32_t slot =
                    lent ? 0 : blocks[at[2] + place / kBlock] * kBlock + place % kBlock;
                rows.insert(rows.end(), {place + at[3], slot, at[2], seen, 0, seen});
            }
        }
        const Plan plan{rows.data(), int64_t(rows.size()) / kRowFields, blocks, nullptr};
        program->visible.find(shape.heads / shape.kv_heads, plan, longest);
    });
}

void paceline_attend_slots(Program* program, const Shape* of, int32_t slots, View from, View to) {
    program->add([=, shape = *of](const Call& call) {
        attend_slots(shape, program->count(to, call) / slots, slots, program->read(from),
                     program->rows(to));
    });
}

}
