// Flags that several commands have, with the same meaning in each.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "core/base/dtype.h"
#include "core/model/row_format.h"
#include "core/placement/spread_policy.h"
#include "core/plan/plan.h"
#include "deploy/runtime/backends.h"
#include "deploy/service/client/service_options.h"

namespace tributary {

/// Any text that is not empty; throws kInvalidArgument.
[[nodiscard]] std::string parse_text(const std::string& text);

void add_switch(CLI::App& app, const std::string& name, bool& target, const std::string& help);
void add_text(CLI::App& app, const std::string& name, const std::string& value, std::string& target,
              const std::string& help);

void add_workers(CLI::App& app, int& workers);
void add_backend(CLI::App& app, std::string& backend, int& threads);
void add_backend_options(CLI::App& app, BackendOptions& options);
void add_leaf_tokens(CLI::App& app, int& leaf_tokens);
void add_exchange(CLI::App& app, Exchange& exchange);
void add_max_step(CLI::App& app, double& max_step_ms);
/// Chooses the constants of the cost model, see find_machine().
void add_costs(CLI::App& app, std::string& costs);
void add_placement(CLI::App& app, SpreadPolicy& spread, Exchange& exchange, int& leaf_tokens);
void add_query(CLI::App& app, DType& dtype);
void add_rows(CLI::App& app, RowFormat& format);
void add_trace(CLI::App& app, std::optional<std::filesystem::path>& trace, std::int64_t& requests,
               std::uint64_t& seed, std::optional<std::filesystem::path>& json,
               const std::string& shown_requests);
void add_shape(CLI::App& app, std::string& shape);
void add_transport(CLI::App& app, TransportChoice& transport, const std::string& help);
void add_kv_gib(CLI::App& app, double& kv_gib, const std::string& help);

/// --token-file and --ca.
void add_credentials(CLI::App& app, std::string& token_file, std::string& certificate_authority);
/// --tls-certificate and --tls-key; `use` says what for.
void add_certificate(CLI::App& app, std::string& certificate, std::string& key,
                     const std::string& use);
/// --service, credentials, certificate, --call-timeout-ms, --transport, --busy-poll.
void add_service(CLI::App& app, ServiceOptions& service, const std::string& help);
/// Flags that describe a pool of this program exclude --service, and the other way round.
void only_without_service(CLI::App& app, std::initializer_list<const char*> names);
void only_with_service(CLI::App& app, std::initializer_list<const char*> names);

}  // namespace tributary
