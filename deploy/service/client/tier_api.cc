#include "deploy/service/client/tier_api.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "core/base/error.h"
#include "core/base/quote.h"
#include "deploy/service/client/pause.h"
#include "deploy/service/client/tier_client.h"
#include "deploy/service/protocol/patience.h"
#include "deploy/service/protocol/pool_messages.h"
#include "deploy/service/protocol/sequence_json.h"

namespace tributary {
namespace {

constexpr int kCreated = 201;
constexpr int kNoContent = 204;
constexpr int kServiceUnavailable = 503;
constexpr std::chrono::milliseconds kRetryPause{100};
/// Used if a full tier's answer does not say when to try again.
constexpr std::chrono::milliseconds kDefaultRetryAfter{1'000};
constexpr std::chrono::milliseconds kMaxRetryAfter{60'000};

/// The code for a status whose body is not the tier's JSON, for example a proxy's. No value for a
/// status that means nothing here.
std::optional<ErrorCode> code_of_status(int status) {
  switch (status) {
    case 400:
      return ErrorCode::kInvalidArgument;
    case 401:
    case 403:
      return ErrorCode::kPermissionDenied;
    case 404:
      return ErrorCode::kNotFound;
    case 413:
      return ErrorCode::kTooLarge;
    case 429:
      return ErrorCode::kPoolFull;
    case 502:
    case 503:
      return ErrorCode::kUnavailable;
    case 504:
      return ErrorCode::kDeadlineExceeded;
    default:
      return std::nullopt;
  }
}

/// Throws AnswerError for a response that no tier sends.
Error error_of(const HttpResponse& response, const std::string& what) {
  constexpr std::size_t kShown = 200;
  const auto body =
      nlohmann::json::parse(response.body, /*callback=*/nullptr, /*allow_exceptions=*/false);
  const auto error = body.is_object() ? body.find("error") : body.end();
  if (error != body.end() && error->is_object()) {
    const auto text = [&](const char* key) {
      const auto found = error->find(key);
      return found != error->end() && found->is_string() ? found->get<std::string>() : what;
    };
    for (int i = 1; i < kErrorCodes; ++i) {
      const auto code = static_cast<ErrorCode>(i);
      if (error_code_name(code) == text("code")) return {code, text("message")};
    }
  }
  const std::string text =
      fmt::format("{}: HTTP status {}: {}", what, response.status, quote(response.body, kShown));
  const std::optional<ErrorCode> code = code_of_status(response.status);
  if (!code) throw AnswerError(text);
  return {*code, text};
}

SequenceHandle answer_of(const HttpResponse& response) {
  try {
    return parse_sequence_handle(response.body);
  } catch (const Error& error) {
    throw AnswerError(error.what());
  }
}

std::chrono::milliseconds retry_after_of(const HttpResponse& response) {
  const std::string_view text = response.header("Retry-After");
  std::int64_t seconds = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  if (error != std::errc() || end != text.data() + text.size() || seconds < 0) {
    return kDefaultRetryAfter;
  }
  return std::min<std::chrono::milliseconds>(
      std::chrono::seconds(std::min<std::int64_t>(seconds, kMaxRetryAfter.count())),
      kMaxRetryAfter);
}

}  // namespace

TierApi::TierApi(HttpClientConfig config) : TierApi(std::move(config), steady_clock()) {}

TierApi::TierApi(HttpClientConfig config, Clock& clock)
    : config_(std::move(config)), clock_(clock) {}

HttpResponse TierApi::request(const std::string& method, const std::string& path,
                              const std::string& body, Deadline deadline,
                              const std::vector<HttpHeader>& headers) {
  // Set at the first failure: an answer may take as long as the deadline allows.
  std::optional<Deadline> patience;
  std::optional<Error> broken;
  while (true) {
    try {
      HttpResponse response = request_once(method, path, body, deadline, headers);
      if (response.status != kServiceUnavailable) return response;
      broken = error_of(response, fmt::format("{} {}", method, path));
    } catch (const Error& error) {
      // The earlier failure says more than the deadline.
      if (error.code() == ErrorCode::kDeadlineExceeded && broken) throw Error(*broken);
      if (error.code() != ErrorCode::kUnavailable) throw;
      broken = error;
    }
    if (!patience) {
      patience = Deadline(std::min(deadline.when(), clock_.now() + kClientPatience));
    }
    if (clock_.now() + kRetryPause >= patience->when()) throw Error(*broken);
    pause(clock_, kRetryPause);
  }
}

HttpResponse TierApi::request_once(const std::string& method, const std::string& path,
                                   const std::string& body, Deadline deadline,
                                   const std::vector<HttpHeader>& headers) {
  std::unique_ptr<HttpClient> client;
  {
    const std::scoped_lock lock(mutex_);
    if (!idle_.empty()) {
      client = std::move(idle_.back());
      idle_.pop_back();
    }
  }
  if (!client) client = std::make_unique<HttpClient>(config_);
  HttpResponse response = client->request(method, path, body, deadline, headers);
  const std::scoped_lock lock(mutex_);
  idle_.push_back(std::move(client));
  return response;
}

SequenceHandle TierApi::admit(const AdmitRequest& wanted, Deadline deadline) {
  const std::vector<HttpHeader> headers = {{"Idempotency-Key", wanted.idempotency_key},
                                           {"Idempotency-Secret", wanted.idempotency_secret},
                                           {"Content-Type", "application/json"}};
  const HttpResponse response =
      request("POST", "/v1/sequences", to_json(wanted), deadline, headers);
  if (response.status != kCreated) {
    const Error error = error_of(response, "admission");
    if (error.code() == ErrorCode::kPoolFull) {
      throw PoolFullError(error.what(), retry_after_of(response));
    }
    throw Error(error);
  }
  return answer_of(response);
}

SequenceHandle TierApi::query(SequenceId id, Deadline deadline) {
  const HttpResponse response = request("GET", "/v1/sequences/" + id_text(id), "", deadline);
  if (response.status != 200) throw error_of(response, "sequence " + id_text(id));
  return answer_of(response);
}

void TierApi::free(SequenceId id, const std::string& pool, Deadline deadline) {
  check_pool_name(pool);  // its alphabet needs no escapes
  const HttpResponse response =
      request("DELETE", fmt::format("/v1/sequences/{}?pool={}", id_text(id), pool), "", deadline);
  if (response.status != 200 && response.status != kNoContent) {
    throw error_of(response, "sequence " + id_text(id));
  }
}

std::vector<std::string> TierApi::workers(Deadline deadline) {
  const HttpResponse response = request("GET", "/v1/workers", "", deadline);
  if (response.status != 200) throw error_of(response, "the tier's workers");
  try {
    return parse_workers(response.body);
  } catch (const Error& error) {
    throw AnswerError(error.what());
  }
}

}  // namespace tributary
