#include "core/model/project_at.h"

#include "core/base/error.h"
#include "core/base/quote.h"

namespace tributary {

std::string_view project_at_name(ProjectAt place) noexcept {
  return place == ProjectAt::kLeaves ? "leaves" : "home";
}

ProjectAt parse_project_at(std::string_view name) {
  for (const ProjectAt place : kProjectAt) {
    if (name == project_at_name(place)) return place;
  }
  fail(ErrorCode::kInvalidArgument, "{} is not home or leaves", quote(name));
}

}  // namespace tributary
