// C interface of programs: build, add operations, run.

#include <algorithm>
#include <cstring>
#include <exception>
#include <string>

#include "kernels/rotary.hpp"
#include "threads/program.hpp"

using namespace paceline;

namespace {

constexpr int64_t kFew = 16;  // rows that one thread copies faster than several

// What went wrong, as `paceline_run` says it.
template <class Work>
const char* failure(const Work& work) {
    thread_local std::string reason;
    try {
        work();
        return nullptr;
    } catch (const std::bad_alloc&) {
        reason = "memory";
    } catch (const std::exception& error) {
        reason = error.what();
    }
    return reason.c_str();
}

}  // namespace

extern "C" {

// Bytes of a packed matrix; 0 for a kind that is unknown here.
int64_t paceline_packed_bytes(int32_t kind, int64_t outputs, int64_t inputs) {
    return packed_bytes(Kind(kind), outputs, inputs);
}

// See `pack`.
void paceline_pack(int32_t kind, const uint8_t* rows, int64_t stride, const int64_t* order,
                   int64_t outputs, int64_t inputs, int32_t threads, uint8_t* to) {
    const Pool::Turn turn(threads);
    pack(Kind(kind), rows, stride, order, outputs, inputs, to);
}

// Rows of a matrix as floats, [count, inputs].
void paceline_read_rows(const Matrix* matrix, const int64_t* outputs, int64_t count, float* to) {
    for (int64_t i = 0; i < count; ++i) read_row(*matrix, outputs[i], to + i * matrix->inputs);
}

// See `rotary_table`.
void paceline_rotary_table(const double* frequencies, int64_t count, int64_t positions,
                           double factor, float* to) {
    rotary_table(frequencies, count, positions, factor, to);
}

Program* paceline_new() { return new Program; }

void paceline_free(Program* program) { delete program; }

int32_t paceline_buffer(Program* program, int32_t count, int64_t width, int32_t quantized) {
    return program->buffer(count, width, quantized);
}

// Rows of a matrix, times `scale`; ids from its outputs on are rows of `more`, as they are. Ids are
// those of an input, or, if that is -1, in a buffer that argmax filled.
void paceline_embed(Program* program, const Matrix* of, const float* more, float scale,
                    int32_t input, View in, View to) {
    program->add([=, table = *of](const Call& call) {
        const Rows<float> out = program->rows(to);
        const Rows<const float> picked = program->read(in);
        const int64_t rows = program->count(to, call), width = table.inputs;
        each(rows, rows > 1, [&](int64_t r) {
            int32_t id;
            std::memcpy(&id, input < 0 ? (const void*)picked[r] : call.inputs[input] + r, sizeof id);
            if (id >= table.outputs) {
                std::memcpy(out[r], more + (id - table.outputs) * width, sizeof(float) * width);
                return;
            }
            read_row(table, id, out[r]);
            for (int64_t d = 0; scale != 1.0f && d < width; ++d) out[r][d] *= scale;
        });
    });
}

// Of another buffer the rows that input `which` names (of -1 zeros), all if it is -1; normed by heads if `norm` is
// not null, by the same weights or, if `own`, by those of each; plus those of `more`, unless it is none.
void paceline_gather(Program* program, View from, int32_t which, int64_t width, const float* norm,
                     float eps, int64_t heads, int32_t own, View more, View to) {
    program->add([=](const Call& call) {
        const Rows<const float> x = program->read(from), added = program->read(more);
        const Rows<float> out = program->rows(to);
        const int64_t rows = program->count(to, call);
        each(rows, rows > kFew, [&](int64_t r) {
            const int64_t named = which < 0 ? r : call.inputs[which][r];
            if (named < 0) {
                std::fill_n(out[r], width, 0.0f);
                return;
            }
            const float* row = x[named];
            if (!norm) {
                std::memcpy(out[r], row, sizeof(float) * width);
                return;
            }
            const int64_t part = width / heads;
            for (int64_t begin = 0; begin < width; begin += part) {
                const float factor = norm_factor(row + begin, part, eps);
                for (int64_t d = 0; d < part; ++d) {
                    const float value = row[begin + d] * factor * norm[own ? begin + d : d];
                    out[r][begin + d] = added ? added[r][begin + d] + value : value;
                }
            }
        });
    });
}

// Layer norm of the rows of another buffer.
void paceline_layer_norm(Program* program, View from, int64_t width, const float* weights,
                         const float* bias, float eps, View to) {
    program->add([=](const Call& call) {
        const Rows<const float> x = program->read(from);
        const Rows<float> out = program->rows(to);
        const int64_t rows = program->count(to, call);
        each(rows, rows > kFew, [&](int64_t r) {
            const float less = mean(x[r], width);
            for (int64_t d = 0; d < width; ++d) out[r][d] = x[r][d] - less;
            const float factor = norm_factor(out[r], width, eps);
            for (int64_t d = 0; d < width; ++d) {
                out[r][d] = out[r][d] * factor * weights[d] + bias[d];
            }
        });
    });
}

// Adds the rows of a buffer to those that input `which` names, each at most once.
void paceline_scatter(Program* program, View from, int32_t which, int64_t width, View to) {
    program->add([=](const Call& call) {
        const Rows<const float> x = program->read(from);
        const Rows<float> out = program->rows(to);
        const int64_t rows = program->count(from, call);
        each(rows, rows > kFew, [&](int64_t r) {
            float* row = out[call.inputs[which][r]];
            for (int64_t d = 0; d < width; ++d) row[d] += x[r][d];
        });
    });
}

// See `MatmulOp`; `more` may be none.
void paceline_product(Program* program, const Matrix* parts, int32_t count, int32_t gate,
                      float scale, const float* norm, float eps, View from, View more, View to) {
    MatmulOp op{{}, count, Gate(gate), scale, norm, eps};
    std::copy_n(parts, count, op.parts);
    program->add([=](const Call& call) {
        matmul(op, program->count(to, call), program->input(from), program->read(more),
               program->output(to), program->scratch);
    });
}

// See `route`.
void paceline_route(Program* program, const Router* of, View scores, int64_t experts, View to) {
    program->add([=, router = *of](const Call& call) {
        route(router, program->count(to, call), experts, program->read(scores), program->rows(to));
    });
}

// See `mix`; the matrices are those of gates, if any, then of `up`, then of `down`.
void paceline_mix(Program* program, const Matrix* parts, int32_t experts, int32_t gated,
                  int32_t activation, int32_t every, View from, View weights, View more, View to) {
    const auto next = [&] {
        const std::vector<Matrix> out(parts, parts + experts);
        parts += experts;
        return out;
    };
    Experts of;
    if (gated) of.gate = next();
    of.up = next();
    of.down = next();
    of.activation = Gate(activation);
    of.every = every;
    program->add([=](const Call& call) {
        mix(of, program->count(to, call), program->read(from), program->read(weights),
            program->read(more), program->rows(to), program->scratch);
    });
}

// Sets the visible keys for the next attention; inputs as in `Plan`.
void paceline_paths(Program* program, const Shape* of, int64_t longest, int32_t rows,
                    int32_t tables, int32_t singles, int32_t count) {
    program->add([=, shape = *of](const Call& call) {
        const Plan plan{call.inputs[rows], call.counts[count], call.inputs[tables],
                        call.inputs[singles]};
        program->visible.find(shape.heads / shape.kv_heads, plan, longest);
    });
}

// See `attention`.
void paceline_attention(Program* program, const Shape* of, const Layer* in, int32_t asked,
                        View from, View to) {
    program->add([=, shape = *of, layer = *in](const Call&) {
        attention(shape, layer, program->visible, Asked(asked), program->read(from),
                  program->output(to));
    });
}

// Sets the states of the next recurrences: input `of` holds a `Recurrence` of each sequence, and
// input `parents` of each node the one before it, -1 for the last row that is none.
void paceline_recurrences(Program* program, int32_t of, int32_t parents, int32_t count,
                          int32_t taps) {
    program->add([=](const Call& call) {
        program->recurrences.set(reinterpret_cast<const Recurrence*>(call.inputs[of]),
                                 call.counts[count], call.inputs[parents], taps);
    });
}

// See `convolve`; records are those of all layers, and of this one from their column on.
void paceline_convolve(Program* program, const Convolution* of, View from, View records, View to) {
    program->add([=, shape = *of](const Call& call) {
        convolve(shape, program->recurrences, program->count(to, call), program->read(from),
                 records.column, program->rows({records.buffer, 0}), program->rows(to));
    });
}

// See `scan`, and `delta`, which skips nothing.
void paceline_scan(Program* program, const StateHeads* of, View from, View gates, View records,
                   View to) {
    program->add([=, shape = *of](const Call& call) {
        (shape.skip ? scan : delta)(shape, program->recurrences, program->count(to, call),
                                    program->rows(from), program->rows(gates), records.column,
                                    program->rows({records.buffer, 0}), program->rows(to));
    });
}

// Runs operations from one to another. Null, or what went wrong: "memory", or a sentence that holds
// until the next run.
const char* paceline_run(Program* program, int64_t begin, int64_t end, int32_t threads,
                         const int64_t* counts, const int32_t* const* inputs, double* seconds) {
    return failure([&] { program->run(begin, end, threads, {counts, inputs}, seconds); });
}

// Operations of the last run.
int64_t paceline_ran(Program* program) { return program->ran(); }

// A buffer of the last run.
float* paceline_read(Program* program, int32_t buffer) { return program->rows({buffer, 0}).at; }

}
