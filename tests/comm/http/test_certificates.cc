#include "tests/comm/http/test_certificates.h"

#include <fmt/format.h>
#include <stdlib.h>

#include <fstream>
#include <stdexcept>

namespace tributary {

TestCertificates::TestCertificates() {
  std::string name = (std::filesystem::temp_directory_path() / "tributary_tls_XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot make " + name);
  folder_ = name;
  for (const char* authority : {"ca", "other_ca"}) {
    run(
        fmt::format("req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 "
                    "-subj /CN={0} -keyout {0}.key -out {0}.pem",
                    authority));
  }
  make("good", "DNS:localhost,IP:127.0.0.1", 2);
  make("wrong_host", "DNS:elsewhere.example,IP:10.1.2.3", 2);
  make("expired", "DNS:localhost,IP:127.0.0.1", 0);  // at the moment that it is made
}

TestCertificates::~TestCertificates() {
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

void TestCertificates::make(const std::string& name, const std::string& hosts, int days) const {
  std::ofstream(path(name + ".ext")) << "subjectAltName=" << hosts << "\n";
  run(
      fmt::format("req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN={0} "
                  "-keyout {0}.key -out {0}.csr",
                  name));
  run(
      fmt::format("x509 -req -in {0}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days {1} "
                  "-extfile {0}.ext -out {0}.pem",
                  name, days));
}

void TestCertificates::run(const std::string& arguments) const {
  const std::string command =
      fmt::format("cd {} && openssl {} >>log 2>&1", folder_.string(), arguments);
  // NOLINTNEXTLINE(cert-env33-c,concurrency-mt-unsafe): fixed words, before any thread
  if (std::system(command.c_str()) != 0) {
    throw std::runtime_error("failed, is openssl installed? " + command);
  }
}

}  // namespace tributary
