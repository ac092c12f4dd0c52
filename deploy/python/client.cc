#include "deploy/python/client.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "deploy/python/errors.h"
#include "deploy/python/rows.h"
#include "deploy/python/sequence.h"
#include "deploy/python/step.h"
#include "deploy/service/transport/transport_choice.h"

namespace tributary::python {
namespace {

namespace nb = nanobind;
using namespace nb::literals;
using Timeout = std::optional<double>;

TransportChoice transport_of(const std::string& name) {
  const TransportChoice choice = parse_transport_choice(name);
  if (choice == TransportChoice::kUcx) {
    fail(ErrorCode::kUnsupported,
         "transport 'ucx': not in the Python package, which speaks TCP ('tcp', 'auto')");
  }
  return choice;
}

Client make_client(const std::string& url, const std::optional<std::string>& token, double timeout,
                   const std::string& transport, const std::string& certificate_authority,
                   const std::string& tls_certificate, const std::string& tls_key, bool busy_poll,
                   bool renew_leases, std::int64_t max_in_flight_bytes) {
  TierClientConfig config = call_config(timeout, max_in_flight_bytes);
  config.url = url;
  config.bearer_token = token.value_or("");
  config.certificate_authority = certificate_authority;
  config.tls_certificate = tls_certificate;
  config.tls_key = tls_key;
  config.transport = transport_of(transport);
  config.busy_poll = busy_poll;
  config.renew_leases = renew_leases;
  std::unique_ptr<TierClient> tier;
  {
    const Unlocked unlocked;
    tier = std::make_unique<TierClient>(config);
  }
  return {share_tier(std::move(tier)), url};
}

std::unique_ptr<Sequence> admit(const Client& client, std::int64_t prompt_tokens,
                                std::int64_t max_new_tokens, Timeout wait,
                                const std::string& spread, const std::string& idempotency_key,
                                const std::string& idempotency_secret,
                                const std::optional<Prefix>& prefix, Timeout timeout) {
  const AdmitRequest request{.prompt_tokens = prompt_tokens,
                             .max_new_tokens = max_new_tokens,
                             .spread = parse_spread_policy(spread),
                             .idempotency_key = idempotency_key,
                             .idempotency_secret = idempotency_secret,
                             .prefix = prefix.value_or(Prefix{})};
  const SharedTier kept = client.tier;  // a pool may be closed meanwhile
  TierClient& tier = usable(kept);
  SequenceHandle handle;
  {
    const Unlocked unlocked;
    handle = wait ? tier.admit_waiting(request, *deadline_of(wait))
                  : tier.admit(request, deadline_of(timeout));
  }
  return std::make_unique<Sequence>(kept, std::move(handle));
}

/// Throws a TypeError for an object that is no sequence.
Sequence& sequence_of(nb::handle object, const char* name) {
  if (nb::isinstance<Sequence>(object)) return nb::cast<Sequence&>(object);
  const nb::str type(nb::handle(object.type()).attr("__qualname__"));
  throw nb::type_error(
      fmt::format("{}: {}, expected tributary.Sequence", name, type.c_str()).c_str());
}

nb::object adopt(const Client& client, nb::object object, bool trusted, Timeout timeout) {
  Sequence& sequence = sequence_of(object, "sequence");
  const Use use(sequence);
  const SharedTier kept = client.tier;  // a pool may be closed meanwhile
  TierClient& tier = usable(kept);
  {
    const Unlocked unlocked;
    if (trusted) {
      tier.adopt_trusted(sequence.handle);
    } else {
      tier.adopt(sequence.handle, deadline_of(timeout));
    }
  }
  sequence.set_tier(kept);
  return object;
}

void release(const Client& client, nb::object object) {
  Sequence& sequence = sequence_of(object, "sequence");
  const Use use(sequence);
  usable(client.tier).release(sequence.handle);
  sequence.set_tier(nullptr);
}

std::unique_ptr<Step> step(const Client& client, const std::vector<nb::object>& sequences,
                           const std::variant<std::int32_t, std::vector<std::int32_t>>& tokens) {
  static_cast<void>(usable(client.tier));
  for (const nb::object& object : sequences) {
    static_cast<void>(sequence_of(object, "sequences"));
  }
  const auto* same = std::get_if<std::int32_t>(&tokens);
  return std::make_unique<Step>(client.tier, sequences,
                                same != nullptr ? std::vector<std::int32_t>(sequences.size(), *same)
                                                : std::get<std::vector<std::int32_t>>(tokens));
}

/// Sequences of a call on many, and their handles.
struct Batch {
  Batch(const Client& client, const std::vector<nb::object>& objects) {
    for (const nb::object& object : objects) {
      Sequence& sequence = sequence_of(object, "sequences");
      if (&sequence.tier() != client.tier.get()) {
        fail(ErrorCode::kInvalidArgument, "sequence {} is another client's: client.adopt(sequence)",
             sequence.id);
      }
      handles.push_back(&sequence.handle);
      if (std::ranges::find(sequences, &sequence) == sequences.end()) {
        sequences.push_back(&sequence);
      }
    }
  }
  std::vector<Sequence*> sequences;            // each once
  std::vector<const SequenceHandle*> handles;  // in the order of the objects
};

void push_all(const Client& client, int layer,
              const std::vector<std::tuple<nb::object, std::int64_t, nb::object>>& parts,
              Timeout timeout) {
  TierClient& tier = usable(client.tier);
  std::vector<nb::object> objects;
  for (const auto& [object, begin, rows] : parts) objects.push_back(object);
  const Batch batch(client, objects);
  std::vector<Array> arrays;
  std::vector<PromptRows> prompt_rows;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const Array& rows =
        arrays.emplace_back(read_rows(std::get<2>(parts[i]), "rows", batch.handles[i]->shape, -1,
                                      /*gaps=*/false));
    prompt_rows.push_back({.sequence = batch.handles[i],
                           .layer = layer,
                           .begin = std::get<1>(parts[i]),
                           .rows = {rows.data, rows.bytes}});
  }
  const Use use(batch.sequences, Sharing::kReaders);
  const Unlocked unlocked;
  tier.push_rows(prompt_rows, deadline_of(timeout));
}

nb::object pull_all(
    const Client& client,
    const std::vector<std::tuple<nb::object, int, std::int64_t, std::int64_t>>& parts,
    const std::optional<std::vector<nb::object>>& out, Timeout timeout) {
  TierClient& tier = usable(client.tier);
  if (out && out->size() != parts.size()) {
    fail(ErrorCode::kInvalidArgument, "{} arrays in out for {} parts", out->size(), parts.size());
  }
  std::vector<nb::object> objects;
  for (const auto& [object, layer, begin, end] : parts) objects.push_back(object);
  const Batch batch(client, objects);
  const Use use(batch.sequences, Sharing::kReaders);
  nb::list arrays;
  std::vector<PulledInto> places;
  places.reserve(parts.size());
  std::vector<PulledRows> pulled;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const auto& [object, layer, begin, end] = parts[i];
    const SequenceHandle& sequence = *batch.handles[i];
    PulledInto& into = places.emplace_back(out ? (*out)[i] : nb::none(), sequence, begin, end);
    arrays.append(into.array());
    pulled.push_back(
        {.sequence = &sequence, .layer = layer, .begin = begin, .rows = into.stored()});
  }
  std::optional<ItemsError> failed;
  {
    const Unlocked unlocked;
    try {
      tier.pull_rows(pulled, deadline_of(timeout));
    } catch (const ItemsError& error) {
      failed = error;
    }
    for (PulledInto& into : places) into.decode();
  }
  if (failed) raise_items(*failed, arrays);
  return arrays;
}

void wait_all_ready(const Client& client, const std::vector<nb::object>& sequences,
                    Timeout timeout) {
  TierClient& tier = usable(client.tier);
  const Batch batch(client, sequences);
  const Use use(batch.sequences, Sharing::kReaders);
  const Unlocked unlocked;
  tier.wait_ready(batch.handles, deadline_of(timeout));
}

void free_all(const Client& client, const std::vector<nb::object>& sequences,
              const std::optional<std::vector<Prefix>>& prefixes, Timeout timeout) {
  TierClient& tier = usable(client.tier);
  const Batch batch(client, sequences);
  const Use use(batch.sequences);
  const Unlocked unlocked;
  tier.free(batch.handles, deadline_of(timeout), prefixes.value_or(std::vector<Prefix>{}));
}

}  // namespace

TierClientConfig call_config(double timeout, std::int64_t max_in_flight_bytes) {
  static_cast<void>(deadline_of(timeout));  // its bounds
  if (max_in_flight_bytes < 1) {
    fail(ErrorCode::kInvalidArgument, "max_in_flight_bytes {}: expected 1 or more",
         max_in_flight_bytes);
  }
  TierClientConfig config;
  config.timeout = std::chrono::milliseconds(static_cast<std::int64_t>(std::ceil(timeout * 1000)));
  config.max_in_flight_bytes = static_cast<std::size_t>(max_in_flight_bytes);
  return config;
}

namespace {

std::string bytes_of(const nb::bytes& bytes) {
  return {bytes.c_str(), bytes.size()};
}

void bind_prefix(nb::module_& module) {
  nb::class_<Prefix>(
      module, "Prefix",
      "Names of a prompt's full blocks from its beginning on, so that sequences "
      "with equal\n"
      "beginnings share rows. Who knows a block's name reads its rows, and who names "
      "one is\n"
      "trusted by all who use the same salt.")
      .def(
          "__init__",
          [](Prefix* place, std::int32_t block_tokens, const std::vector<nb::bytes>& keys,
             const nb::bytes& cache_salt) {
            Prefix prefix{.block_tokens = block_tokens, .cache_salt = bytes_of(cache_salt)};
            for (const nb::bytes& key : keys) prefix.add_key({key.c_str(), key.size()});
            new (place) Prefix(std::move(prefix));
          },
          "block_tokens"_a, "keys"_a, nb::kw_only(), "cache_salt"_a = nb::bytes("", 0),
          nb::sig("def __init__(self, block_tokens: int, keys: collections.abc.Sequence[bytes], "
                  "*, cache_salt: bytes = b'') -> None"),
          "block_tokens: of a block, a multiple of 64 that divides the pool's leaf. keys: one for "
          "each\n"
          "block, of 16 to 32 bytes, for all tokens up to the block's end: a chained hash, as "
          "vLLM's.\n"
          "cache_salt: at most 64 bytes; other salts, other names.")
      .def_ro("block_tokens", &Prefix::block_tokens)
      .def("__len__", [](const Prefix& prefix) { return prefix.blocks(); })
      .def("__repr__", [](const Prefix& prefix) {
        return fmt::format("<tributary.Prefix of {} blocks of {} tokens>", prefix.blocks(),
                           prefix.block_tokens);
      });
}

}  // namespace

void bind_client(nb::module_& module) {
  bind_prefix(module);
  nb::class_<Client>(module, "Client",
                     "A tier, reached by its control plane's URL. Calls block without the "
                     "interpreter's lock, may\n"
                     "come from any thread and raise tributary.Error. It renews the leases of its "
                     "sequences while\n"
                     "it or one of them lives; not to be used on the other side of os.fork().")
      .def(
          "__init__",
          [](Client* place, const std::string& url, const std::optional<std::string>& token,
             double timeout, const std::string& transport, const std::string& authority,
             const std::string& certificate, const std::string& key, bool busy_poll,
             bool renew_leases, std::int64_t max_in_flight_bytes) {
            new (place) Client(make_client(url, token, timeout, transport, authority, certificate,
                                           key, busy_poll, renew_leases, max_in_flight_bytes));
          },
          "url"_a = "http://127.0.0.1:7300", "token"_a = nb::none(), "timeout"_a = 10.0,
          "transport"_a = "tcp", nb::kw_only(), "certificate_authority"_a = "",
          "tls_certificate"_a = "", "tls_key"_a = "", "busy_poll"_a = false,
          "renew_leases"_a = true, "max_in_flight_bytes"_a = std::int64_t{256} << 20,
          "token: what the control plane asks for. timeout: seconds, of calls that are given "
          "none.\n"
          "transport: 'tcp' (also encrypted), what the package speaks. certificate_authority,\n"
          "tls_certificate, tls_key: PEM files. busy_poll: spin while waiting, a core for some\n"
          "microseconds. max_in_flight_bytes: of rows on their way at once.")
      .def_prop_ro("url", [](const Client& client) { return client.url; })
      .def("admit", &admit, "prompt_tokens"_a, "max_new_tokens"_a, "wait"_a = nb::none(),
           nb::kw_only(), "spread"_a = "auto", "idempotency_key"_a = "",
           "idempotency_secret"_a = "", "prefix"_a = nb::none(), "timeout"_a = nb::none(),
           "Reserves room for a sequence.\n\n"
           "Raises PoolFull (its retry_after in seconds) where there is none now; with `wait`, in\n"
           "seconds, only when that has passed, and it waits for a tier that starts, too. "
           "TooLarge:\n"
           "no pool can ever hold it. spread: over which workers, 'auto', 'single', 'all', ...\n"
           "A repeat with the same idempotency_key, by this client or with the first one's\n"
           "idempotency_secret, gets the same sequence; any other AlreadyExists.\n"
           "prefix: a Prefix; rows below the sequence's present_tokens are there then.")
      .def("adopt", &adopt, "sequence"_a, nb::kw_only(), "trusted"_a = false,
           "timeout"_a = nb::none(),
           nb::sig("def adopt(self, sequence: Sequence, *, trusted: bool = False, "
                   "timeout: float | None = None) -> Sequence"),
           "Takes a sequence of another client, as pickle or from_json() brought it, and renews "
           "its\n"
           "lease; returns it. Raises PermissionDenied for one that names other workers than the\n"
           "tier's, which the control plane is asked about where they are new. trusted: it comes "
           "from\n"
           "a process of one's own, and the control plane is not asked.")
      .def("release", &release, "sequence"_a,
           nb::sig("def release(self, sequence: Sequence) -> None"),
           "Renews its lease no longer: it ends with that, unless another client adopts it.")
      .def("step", &step, "sequences"_a, "tokens"_a = 1,
           nb::sig("def step(self, sequences: collections.abc.Sequence[Sequence], "
                   "tokens: int | collections.abc.Sequence[int] = 1) -> Step"),
           "A decode step of these sequences, with `tokens` new ones each (one number, or one for\n"
           "each sequence; 0: it is left out).")
      .def("push", &push_all, "layer"_a, "parts"_a, nb::kw_only(), "timeout"_a = nb::none(),
           nb::sig("def push(self, layer: int, "
                   "parts: collections.abc.Sequence[tuple[Sequence, int, typing.Any]], *, "
                   "timeout: float | None = None) -> None"),
           "Sequence.push() of many at once: (sequence, begin, rows) each. Those that fail stand "
           "in\n"
           "`failed` of the error; the others' rows have arrived.")
      .def(
          "pull", &pull_all, "parts"_a, "out"_a = nb::none(), nb::kw_only(),
          "timeout"_a = nb::none(),
          nb::sig("def pull(self, "
                  "parts: collections.abc.Sequence[tuple[Sequence, int, int, int]], "
                  "out: collections.abc.Sequence[typing.Any] | None = None, *, "
                  "timeout: float | None = None) -> list[typing.Any]"),
          "Sequence.pull() of many at once: (sequence, layer, begin, end) each, and as many arrays "
          "in\n"
          "`out`. Returns the arrays. Where some fail, the error's `failed` names them, and its\n"
          "`results` are the arrays.")
      .def("wait_ready", &wait_all_ready, "sequences"_a, nb::kw_only(), "timeout"_a = nb::none(),
           nb::sig("def wait_ready(self, sequences: collections.abc.Sequence[Sequence], *, "
                   "timeout: float | None = None) -> None"),
           "Sequence.wait_ready() of many at once.")
      .def("free", &free_all, "sequences"_a, nb::kw_only(), "prefixes"_a = nb::none(),
           "timeout"_a = nb::none(),
           nb::sig("def free(self, sequences: collections.abc.Sequence[Sequence], *, "
                   "prefixes: collections.abc.Sequence[Prefix] | None = None, "
                   "timeout: float | None = None) -> None"),
           "Sequence.free() of many at once; prefixes: one for each.")
      .def("__repr__",
           [](const Client& client) { return fmt::format("<tributary.Client {}>", client.url); });
}

}  // namespace tributary::python
