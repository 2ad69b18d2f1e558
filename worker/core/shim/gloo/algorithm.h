// See context.h: declarations ProcessGroupGloo.hpp asks for under this name.
#pragma once
#include <gloo/context.h>
