// See gloo/context.h. ProcessGroupGloo.hpp includes this file and names nothing from it.
#pragma once
