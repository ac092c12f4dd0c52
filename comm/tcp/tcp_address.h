// "ADDRESS:PORT" and the endpoint that it names.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <string>

namespace tributary::tcp {

/// Parses "10.0.0.1:7070" or "[fe80::1]:7070". Host names are refused: a lookup could take long.
/// Throws kInvalidArgument.
[[nodiscard]] boost::asio::ip::tcp::endpoint parse_address(const std::string& text);

}  // namespace tributary::tcp
