// Certificates for the tests of TLS, made with the openssl program (deploy/packages.txt) in a
// folder of their own.
#pragma once

#include <filesystem>
#include <string>

namespace tributary {

class TestCertificates {
 public:
  /// Throws std::runtime_error when openssl is missing or fails.
  TestCertificates();
  ~TestCertificates();
  TestCertificates(const TestCertificates&) = delete;
  TestCertificates& operator=(const TestCertificates&) = delete;

  /// `ca.pem`, `other_ca.pem`; certificates of `ca`: `good.pem` (for localhost and 127.0.0.1),
  /// `wrong_host.pem`, `expired.pem`; each certificate's key: `good.key`, ...
  [[nodiscard]] std::filesystem::path path(const std::string& name) const { return folder_ / name; }

 private:
  void make(const std::string& name, const std::string& hosts, int days) const;
  void run(const std::string& arguments) const;
  std::filesystem::path folder_;
};

}  // namespace tributary
