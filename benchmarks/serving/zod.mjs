// Writes schemas of random types of zod, one a line: COUNT SEED.
import { z } from "zod";

const [count, seed] = process.argv.slice(-2).map(Number);
let state = 1;
const random = () => (state = (state * 1103515245 + 12345) % 2147483648) / 2147483648;
const below = (n) => Math.floor(random() * n);
const pick = (list) => list[below(list.length)];
const names = "name city colour price size owner status code kind note é x-y".split(" ");

const strings = [
  () => z.string(), () => z.email(), () => z.uuid(), () => z.url(), () => z.iso.datetime(),
  () => z.iso.date(), () => z.iso.time(), () => z.iso.duration(), () => z.ipv4(), () => z.ipv6(),
  () => z.cidrv4(), () => z.base64(), () => z.base64url(), () => z.nanoid(), () => z.cuid(),
  () => z.cuid2(), () => z.ulid(), () => z.emoji(), () => z.e164(), () => z.jwt(), () => z.guid(),
  () => z.string().regex(/^[a-z]+\/\d+$/i), () => z.string().regex(/^\p{L}+$/u),
  () => z.string().min(2).max(5), () => z.string().startsWith("a"), () => z.ksuid(),
  () => z.string().includes("b.c"), () => z.string().endsWith("z"), () => z.xid(),
  () => z.string().trim().toLowerCase(), () => z.string().length(4), () => z.hostname(),
  () => z.iso.datetime({ offset: true }), () => z.iso.datetime({ local: true, precision: 3 }),
  () => z.hex(), () => z.string().lowercase(),
  () => z.templateLiteral(["a-", z.number(), "-", z.enum(["x", "y"])]),
];
const numbers = [
  () => z.number(), () => z.int(), () => z.int32(), () => z.uint32(), () => z.float32(),
  () => z.float64(), () => z.number().positive(), () => z.number().min(-5).lt(7.5),
  () => z.number().int().gte(3).lte(1e15), () => z.number().multipleOf(5),
  () => z.number().nonnegative(), () => z.number().int().multipleOf(3).min(0).max(99),
];
const nested = [
  (t) => z.array(t()), (t) => z.array(t()).min(1).max(3), (t) => z.tuple([t(), t()]),
  (t) => z.tuple([t()]).rest(t()), (t) => z.record(z.string(), t()),
  (t) => z.record(z.enum(["p", "q"]), t()), (t) => z.union([t(), t()]), (t) => t().nullable(),
  (t) => t().optional(), (t, o) => z.intersection(o(), o()), (t) => t().default(null),
  (t) => z.partialRecord(z.enum(["p", "q", "r"]), t()),
  (t) => z.discriminatedUnion("kind", [
    z.object({ kind: z.literal("a"), x: t() }), z.object({ kind: z.literal("b"), y: t() })]),
];

function type(depth) {
  const kind = below(depth < 3 ? 22 : 10);
  if (kind < 5) return pick(strings)();
  if (kind < 7) return pick(numbers)();
  if (kind === 7) return z.boolean();
  if (kind === 8) return z.enum(["A", "B", "C c"]);
  if (kind === 9) return z.literal(pick([1, "x", null, true]));
  if (kind < 18) return pick(nested)(() => type(depth + 1), () => object(depth + 1));
  return object(depth + 1);
}

function object(depth) {
  const members = {};
  for (let i = 1 + below(5); i > 0; i--) members[pick(names)] = type(depth);
  const made = pick([z.object, z.strictObject, z.looseObject])(members);
  return below(9) === 0 ? made.partial() : made;
}

for (let made = 0, tried = 0; made < count; tried++) {
  state = (tried + 1) * 7919 + seed;
  for (let i = 0; i < 5; i++) random();
  const io = pick(["input", "output"]);
  const target = pick(["draft-2020-12", "draft-7", "draft-4", "openapi-3.0"]);
  try {
    const schema = z.toJSONSchema(object(0), { io, target, unrepresentable: "any" });
    console.log(JSON.stringify(schema));
    made++;
  } catch (error) {
    if (!/intersection|unrepresentable|merge/i.test(error.message)) throw error;
  }
}
