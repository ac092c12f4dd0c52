// A control plane in this process, on a thread of its own, and requests to it.
#include "tests/deploy/service/control/control_harness.h"

namespace tributary {

using nlohmann::json;

namespace {

/// Only tests of a timeout have a short one.
constexpr int kPatientMs = 15'000;

}  // namespace

ControlOptions ControlHarness::quick_options() {
  ControlOptions options;
  options.listen = "127.0.0.1:0";
  options.failure_timeout_ms = kPatientMs;
  return options;
}

ControlHarness::ControlHarness(const ControlOptions& options)
    : control_(std::make_unique<Control>(loop_, options)),
      address_(control_->address()),
      thread_([this] { loop_.run(); }) {}

ControlHarness::~ControlHarness() {
  loop_.stop();
  thread_.join();
}

HttpResponse ControlHarness::request(const std::string& method, const std::string& path,
                                     const std::string& body,
                                     const std::vector<HttpHeader>& headers) const {
  HttpClientConfig config;
  config.url = parse_url("http://" + address_);
  HttpClient client(config);
  return client.request(method, path, body, Deadline::after(std::chrono::minutes(1)), headers);
}

HttpResponse ControlHarness::admit(std::int64_t prompt_tokens, std::int64_t max_new_tokens,
                                   const std::string& key) const {
  std::vector<HttpHeader> headers{{"Content-Type", "application/json"}};
  if (!key.empty()) {
    headers.push_back({"Idempotency-Key", key});
    headers.push_back({"Idempotency-Secret", "secret"});
  }
  return request(
      "POST", "/v1/sequences",
      json({{"prompt_tokens", prompt_tokens}, {"max_new_tokens", max_new_tokens}}).dump(), headers);
}

json ControlHarness::cluster() const {
  return json::parse(request("GET", "/v1/cluster").body);
}

bool ControlHarness::wait_for(const std::function<bool(const json&)>& holds) const {
  const auto deadline = Deadline::after(std::chrono::minutes(1));
  while (!deadline.expired()) {
    if (holds(cluster())) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));  // between two questions
  }
  return false;
}

bool ControlHarness::wait_for_state(const std::string& pool, const std::string& state) const {
  return wait_for([&](const json& cluster) {
    for (const json& known : cluster["pools"]) {
      if (known["name"] == pool) return known["state"] == state;
    }
    return false;
  });
}

std::string code_of_body(const HttpResponse& response) {
  const json body = json::parse(response.body, nullptr, false);
  if (!body.is_object() || !body.contains("error")) return "";
  return body["error"].value("code", "");
}

std::string path_of(SequenceId id) {
  return "/v1/sequences/" + id_text(id);
}

}  // namespace tributary
