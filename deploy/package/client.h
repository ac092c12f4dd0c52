// The client library of a decode tier, as an installed program includes it: <tributary/client.h>.
#pragma once

#include "deploy/service/client/tier_client.h"
