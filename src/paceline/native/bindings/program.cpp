// C interface of programs: build, add operations, run.

#include <cstring>
#include <exception>
#include <string>

#include "kernels/embeddings.hpp"
#include "threads/program.hpp"
#include "kernels/kv_layout.hpp"

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

int paceline_has_float_products() { return has_fp32_matmul(); }

int paceline_has_int8_products() { return has_int8_matmul(); }

int paceline_has_pairs() { return kHasBf16Dot; }

Program* paceline_new() { return new Program; }

void paceline_free(Program* program) { delete program; }

int32_t paceline_buffer(Program* program, int32_t count, int64_t width, int32_t quantized) {
    return program->buffer(count, width, quantized);
}

// Rows of a table.
void paceline_embed(Program* program, const Embeddings* of, const Tokens* at, View to) {
    program->add([program, table = *of, ids = *at, to](const Call& call) {
        const Rows<float> out = program->rows(to);
        const Rows<const float> picked = program->read(ids.picked);
        const int64_t rows = program->count(to, call);
        each(rows, rows > kFew, [&](int64_t r) {
            int32_t id;
            if (ids.input < 0) {
                std::memcpy(&id, picked[r], sizeof id);
            } else {
                id = call.inputs[ids.input][r * ids.stride + ids.offset];
            }
            embed(table, id, out[r]);
        });
    });
}

// Of another buffer the rows that input `which` names, all if it is -1; normed if `norm` is not
// null.
void paceline_gather(Program* program, View from, int32_t which, int64_t width, const float* norm,
                     float eps, View to) {
    program->add([=](const Call& call) {
        const Rows<const float> x = program->read(from);
        const Rows<float> out = program->rows(to);
        const int64_t rows = program->count(to, call);
        each(rows, rows > kFew, [&](int64_t r) {
            const float* row = x[which < 0 ? r : call.inputs[which][r]];
            if (!norm) {
                std::memcpy(out[r], row, sizeof(float) * width);
                return;
            }
            const float factor = norm_factor(row, width, eps);
            for (int64_t d = 0; d < width; ++d) out[r][d] = row[d] * factor * norm[d];
        });
    });
}

// `normed`, unless it is none, takes what is made, quantized for a norm of weights `next`.
void paceline_product(Program* program, const Matrix* matrix, const float* norm, float eps,
                      View from, View residual, View to, View normed, const float* next) {
    const MatmulOp op{*matrix, norm, eps};
    program->add([=](const Call& call) {
        program->trace->note(op.matrix.numbers(), op.matrix.bytes());
        Output out = program->output(to);
        if (normed.buffer >= 0) {
            out.normed = program->output(normed).quantized;
            out.weights = next;
        }
        matmul(op, program->count(to, call), program->input(from), program->read(residual), out,
                program->scratch);
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

// For the last row of each sequence alone while `whole`, unless null, points to 0.
void paceline_attention(Program* program, const Shape* of, const Layer* in, const int32_t* whole,
                        View from, View to) {
    program->add([=, shape = *of, layer = *in](const Call&) {
        const Asked asked = whole && !*whole ? Asked::kLast : Asked::kAll;
        note_blocks(shape, layer, program->visible, *program->trace);
        attention(shape, layer, program->visible, asked, program->read(from),
                       program->output(to));
    });
}

// Runs the first so many operations. Null, or what went wrong: "memory", or a sentence that holds
// until the next run.
const char* paceline_run(Program* program, int64_t operations, int32_t threads,
                         const int64_t* counts, const int32_t* const* inputs, double* seconds) {
    return failure([&] { program->run(operations, threads, {counts, inputs}, seconds); });
}

// Begins to run them, and returns. What it is given must stay as it is until `paceline_finish`,
// which says what `paceline_run` says.
void paceline_begin(Program* program, int64_t operations, int32_t threads, const int64_t* counts,
                    const int32_t* const* inputs) {
    program->begin(operations, threads, {counts, inputs});
}

const char* paceline_finish(Program* program) {
    return failure([&] { program->finish(); });
}

// Operations of the last run.
int64_t paceline_ran(Program* program) { return program->ran(); }

// A buffer of the last run.
float* paceline_read(Program* program, int32_t buffer) { return program->rows({buffer, 0}).at; }

}
