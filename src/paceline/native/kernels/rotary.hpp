// Tables of rotary positions, the same on every processor and with every C library.

#pragma once

#include <cmath>
#include <cstdint>

namespace paceline {

// Cosine and sine of an angle below 1.6e6, by sums and products alone: those of C libraries differ
// in the last bit.
inline void cosine_and_sine(double angle, double (&out)[2]) {
    const double shift = 6755399441055744.0;  // 1.5 * 2^52: adding it rounds to an integer
    const double turns = (angle * 0.63661977236758134308 + shift) - shift;
    // pi / 2 in parts of 33 bits, whose products are exact.
    double x = angle - turns * 0x1.921fb544p0;
    x = x - turns * 0x1.0b4611a6p-34;
    x = x - turns * 0x1.3198a2e037073p-69;
    const double square = x * x;
    // Taylor, up to x^17 and x^18; |x| is below 0.79.
    double sine = 0, cosine = 0;
    for (int k = 8; k > 0; --k) {
        sine = (sine + 1) * -square / double(2 * k * (2 * k + 1));
        cosine = (cosine + 1) * -square / double((2 * k - 1) * (2 * k));
    }
    sine = x * sine + x;
    cosine = cosine + 1;
    const int64_t quarter = int64_t(turns) & 3;
    const bool swapped = quarter & 1;
    const double c = swapped ? sine : cosine, other = swapped ? cosine : sine;
    out[0] = quarter == 1 || quarter == 2 ? -c : c;
    out[1] = quarter >= 2 ? -other : other;
}

// Rows of cosines, then sines, of `count` frequencies at positions from 0 on, times `factor`.
inline void rotary_table(const double* frequencies, int64_t count, int64_t positions, double factor,
                         float* to) {
    for (int64_t p = 0; p < positions; ++p, to += 2 * count) {
        for (int64_t i = 0; i < count; ++i) {
            double both[2];
            cosine_and_sine(double(p) * frequencies[i], both);
            to[i] = float(factor * both[0]);
            to[count + i] = float(factor * both[1]);
        }
    }
}

}  // namespace paceline
