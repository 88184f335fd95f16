
define internal void @spread(ptr noalias %x, ptr noalias %planes, i64 %job, ptr noalias %scratch) nounwind {
entry:
  %slot6 = alloca i64
  %slot14 = alloca i64
  %slot26 = alloca i64
  %slot34 = alloca i64
  %slot53 = alloca i64
  %slot62 = alloca i64
  %slot71 = alloca i64
  %slot79 = alloca i64
  %slot91 = alloca i64
  %slot99 = alloca i64
  %slot118 = alloca i64
  %slot127 = alloca i64
  %slot136 = alloca i64
  %slot144 = alloca i64
  %slot156 = alloca i64
  %slot164 = alloca i64
  %slot183 = alloca i64
  %slot192 = alloca i64
  %slot201 = alloca i64
  %slot209 = alloca i64
  %slot221 = alloca i64
  %slot229 = alloca i64
  %slot248 = alloca i64
  %slot257 = alloca i64
  %v1 = mul i64 %job, 81
  %v2 = getelementptr float, ptr %x, i64 %v1
  %v3 = mul i64 %job, 144
  %v4 = getelementptr float, ptr %planes, i64 %v3
  %v5 = getelementptr float, ptr %v4, i64 0
  store i64 0, ptr %slot6
  br label %head7
head7:
  %v10 = load i64, ptr %slot6
  %v11 = icmp slt i64 %v10, 6
  br i1 %v11, label %body8, label %end9
body8:
  %v12 = getelementptr float, ptr %v5, i64 %v10
  store float 0x0000000000000000, ptr %v12, align 4
  %v13 = add nsw i64 %v10, 1
  store i64 %v13, ptr %slot6
  br label %head7
end9:
  store i64 1, ptr %slot14
  br label %head15
head15:
  %v18 = load i64, ptr %slot14
  %v19 = icmp slt i64 %v18, 5
  br i1 %v19, label %body16, label %end17
body16:
  %v20 = mul i64 %v18, 2
  %v21 = add i64 %v20, -1
  %v22 = mul i64 %v21, 9
  %v23 = getelementptr float, ptr %v2, i64 %v22
  %v24 = mul i64 %v18, 6
  %v25 = getelementptr float, ptr %v5, i64 %v24
  store i64 0, ptr %slot26
  br label %head27
head27:
  %v30 = load i64, ptr %slot26
  %v31 = icmp slt i64 %v30, 1
  br i1 %v31, label %body28, label %end29
body28:
  %v32 = getelementptr float, ptr %v25, i64 %v30
  store float 0x0000000000000000, ptr %v32, align 4
  %v33 = add nsw i64 %v30, 1
  store i64 %v33, ptr %slot26
  br label %head27
end29:
  store i64 0, ptr %slot34
  br label %head35
head35:
  %v38 = load i64, ptr %slot34
  %v39 = icmp slt i64 %v38, 4
  br i1 %v39, label %body36, label %end37
body36:
  %v40 = icmp slt i64 %v38, 0
  %v41 = select i1 %v40, i64 %v38, i64 0
  %v42 = mul i64 %v41, 2
  %v43 = add i64 %v42, 1
  %v44 = getelementptr float, ptr %v23, i64 %v43
  %v45 = load <4 x float>, ptr %v44, align 4
  %v46 = add i64 %v43, 3
  %v47 = getelementptr float, ptr %v23, i64 %v46
  %v48 = load <4 x float>, ptr %v47, align 4
  %v49 = shufflevector <4 x float> %v45, <4 x float> %v48, <4 x i32> <i32 0, i32 2, i32 5, i32 7>
  %v50 = add i64 %v41, 1
  %v51 = getelementptr float, ptr %v25, i64 %v50
  store <4 x float> %v49, ptr %v51, align 4
  %v52 = add nsw i64 %v38, 4
  store i64 %v52, ptr %slot34
  br label %head35
end37:
  store i64 5, ptr %slot53
  br label %head54
head54:
  %v57 = load i64, ptr %slot53
  %v58 = icmp slt i64 %v57, 6
  br i1 %v58, label %body55, label %end56
body55:
  %v59 = getelementptr float, ptr %v25, i64 %v57
  store float 0x0000000000000000, ptr %v59, align 4
  %v60 = add nsw i64 %v57, 1
  store i64 %v60, ptr %slot53
  br label %head54
end56:
  %v61 = add nsw i64 %v18, 1
  store i64 %v61, ptr %slot14
  br label %head15
end17:
  store i64 30, ptr %slot62
  br label %head63
head63:
  %v66 = load i64, ptr %slot62
  %v67 = icmp slt i64 %v66, 36
  br i1 %v67, label %body64, label %end65
body64:
  %v68 = getelementptr float, ptr %v5, i64 %v66
  store float 0x0000000000000000, ptr %v68, align 4
  %v69 = add nsw i64 %v66, 1
  store i64 %v69, ptr %slot62
  br label %head63
end65:
  %v70 = getelementptr float, ptr %v4, i64 36
  store i64 0, ptr %slot71
  br label %head72
head72:
  %v75 = load i64, ptr %slot71
  %v76 = icmp slt i64 %v75, 6
  br i1 %v76, label %body73, label %end74
body73:
  %v77 = getelementptr float, ptr %v70, i64 %v75
  store float 0x0000000000000000, ptr %v77, align 4
  %v78 = add nsw i64 %v75, 1
  store i64 %v78, ptr %slot71
  br label %head72
end74:
  store i64 1, ptr %slot79
  br label %head80
head80:
  %v83 = load i64, ptr %slot79
  %v84 = icmp slt i64 %v83, 5
  br i1 %v84, label %body81, label %end82
body81:
  %v85 = mul i64 %v83, 2
  %v86 = add i64 %v85, -1
  %v87 = mul i64 %v86, 9
  %v88 = getelementptr float, ptr %v2, i64 %v87
  %v89 = mul i64 %v83, 6
  %v90 = getelementptr float, ptr %v70, i64 %v89
  store i64 0, ptr %slot91
  br label %head92
head92:
  %v95 = load i64, ptr %slot91
  %v96 = icmp slt i64 %v95, 0
  br i1 %v96, label %body93, label %end94
body93:
  %v97 = getelementptr float, ptr %v90, i64 %v95
  store float 0x0000000000000000, ptr %v97, align 4
  %v98 = add nsw i64 %v95, 1
  store i64 %v98, ptr %slot91
  br label %head92
end94:
  store i64 0, ptr %slot99
  br label %head100
head100:
  %v103 = load i64, ptr %slot99
  %v104 = icmp slt i64 %v103, 5
  br i1 %v104, label %body101, label %end102
body101:
  %v105 = icmp slt i64 %v103, 1
  %v106 = select i1 %v105, i64 %v103, i64 1
  %v107 = mul i64 %v106, 2
  %v108 = add i64 %v107, 0
  %v109 = getelementptr float, ptr %v88, i64 %v108
  %v110 = load <4 x float>, ptr %v109, align 4
  %v111 = add i64 %v108, 3
  %v112 = getelementptr float, ptr %v88, i64 %v111
  %v113 = load <4 x float>, ptr %v112, align 4
  %v114 = shufflevector <4 x float> %v110, <4 x float> %v113, <4 x i32> <i32 0, i32 2, i32 5, i32 7>
  %v115 = add i64 %v106, 0
  %v116 = getelementptr float, ptr %v90, i64 %v115
  store <4 x float> %v114, ptr %v116, align 4
  %v117 = add nsw i64 %v103, 4
  store i64 %v117, ptr %slot99
  br label %head100
end102:
  store i64 5, ptr %slot118
  br label %head119
head119:
  %v122 = load i64, ptr %slot118
  %v123 = icmp slt i64 %v122, 6
  br i1 %v123, label %body120, label %end121
body120:
  %v124 = getelementptr float, ptr %v90, i64 %v122
  store float 0x0000000000000000, ptr %v124, align 4
  %v125 = add nsw i64 %v122, 1
  store i64 %v125, ptr %slot118
  br label %head119
end121:
  %v126 = add nsw i64 %v83, 1
  store i64 %v126, ptr %slot79
  br label %head80
end82:
  store i64 30, ptr %slot127
  br label %head128
head128:
  %v131 = load i64, ptr %slot127
  %v132 = icmp slt i64 %v131, 36
  br i1 %v132, label %body129, label %end130
body129:
  %v133 = getelementptr float, ptr %v70, i64 %v131
  store float 0x0000000000000000, ptr %v133, align 4
  %v134 = add nsw i64 %v131, 1
  store i64 %v134, ptr %slot127
  br label %head128
end130:
  %v135 = getelementptr float, ptr %v4, i64 72
  store i64 0, ptr %slot136
  br label %head137
head137:
  %v140 = load i64, ptr %slot136
  %v141 = icmp slt i64 %v140, 0
  br i1 %v141, label %body138, label %end139
body138:
  %v142 = getelementptr float, ptr %v135, i64 %v140
  store float 0x0000000000000000, ptr %v142, align 4
  %v143 = add nsw i64 %v140, 1
  store i64 %v143, ptr %slot136
  br label %head137
end139:
  store i64 0, ptr %slot144
  br label %head145
head145:
  %v148 = load i64, ptr %slot144
  %v149 = icmp slt i64 %v148, 5
  br i1 %v149, label %body146, label %end147
body146:
  %v150 = mul i64 %v148, 2
  %v151 = add i64 %v150, 0
  %v152 = mul i64 %v151, 9
  %v153 = getelementptr float, ptr %v2, i64 %v152
  %v154 = mul i64 %v148, 6
  %v155 = getelementptr float, ptr %v135, i64 %v154
  store i64 0, ptr %slot156
  br label %head157
head157:
  %v160 = load i64, ptr %slot156
  %v161 = icmp slt i64 %v160, 1
  br i1 %v161, label %body158, label %end159
body158:
  %v162 = getelementptr float, ptr %v155, i64 %v160
  store float 0x0000000000000000, ptr %v162, align 4
  %v163 = add nsw i64 %v160, 1
  store i64 %v163, ptr %slot156
  br label %head157
end159:
  store i64 0, ptr %slot164
  br label %head165
head165:
  %v168 = load i64, ptr %slot164
  %v169 = icmp slt i64 %v168, 4
  br i1 %v169, label %body166, label %end167
body166:
  %v170 = icmp slt i64 %v168, 0
  %v171 = select i1 %v170, i64 %v168, i64 0
  %v172 = mul i64 %v171, 2
  %v173 = add i64 %v172, 1
  %v174 = getelementptr float, ptr %v153, i64 %v173
  %v175 = load <4 x float>, ptr %v174, align 4
  %v176 = add i64 %v173, 3
  %v177 = getelementptr float, ptr %v153, i64 %v176
  %v178 = load <4 x float>, ptr %v177, align 4
  %v179 = shufflevector <4 x float> %v175, <4 x float> %v178, <4 x i32> <i32 0, i32 2, i32 5, i32 7>
  %v180 = add i64 %v171, 1
  %v181 = getelementptr float, ptr %v155, i64 %v180
  store <4 x float> %v179, ptr %v181, align 4
  %v182 = add nsw i64 %v168, 4
  store i64 %v182, ptr %slot164
  br label %head165
end167:
  store i64 5, ptr %slot183
  br label %head184
head184:
  %v187 = load i64, ptr %slot183
  %v188 = icmp slt i64 %v187, 6
  br i1 %v188, label %body185, label %end186
body185:
  %v189 = getelementptr float, ptr %v155, i64 %v187
  store float 0x0000000000000000, ptr %v189, align 4
  %v190 = add nsw i64 %v187, 1
  store i64 %v190, ptr %slot183
  br label %head184
end186:
  %v191 = add nsw i64 %v148, 1
  store i64 %v191, ptr %slot144
  br label %head145
end147:
  store i64 30, ptr %slot192
  br label %head193
head193:
  %v196 = load i64, ptr %slot192
  %v197 = icmp slt i64 %v196, 36
  br i1 %v197, label %body194, label %end195
body194:
  %v198 = getelementptr float, ptr %v135, i64 %v196
  store float 0x0000000000000000, ptr %v198, align 4
  %v199 = add nsw i64 %v196, 1
  store i64 %v199, ptr %slot192
  br label %head193
end195:
  %v200 = getelementptr float, ptr %v4, i64 108
  store i64 0, ptr %slot201
  br label %head202
head202:
  %v205 = load i64, ptr %slot201
  %v206 = icmp slt i64 %v205, 0
  br i1 %v206, label %body203, label %end204
body203:
  %v207 = getelementptr float, ptr %v200, i64 %v205
  store float 0x0000000000000000, ptr %v207, align 4
  %v208 = add nsw i64 %v205, 1
  store i64 %v208, ptr %slot201
  br label %head202
end204:
  store i64 0, ptr %slot209
  br label %head210
head210:
  %v213 = load i64, ptr %slot209
  %v214 = icmp slt i64 %v213, 5
  br i1 %v214, label %body211, label %end212
body211:
  %v215 = mul i64 %v213, 2
  %v216 = add i64 %v215, 0
  %v217 = mul i64 %v216, 9
  %v218 = getelementptr float, ptr %v2, i64 %v217
  %v219 = mul i64 %v213, 6
  %v220 = getelementptr float, ptr %v200, i64 %v219
  store i64 0, ptr %slot221
  br label %head222
head222:
  %v225 = load i64, ptr %slot221
  %v226 = icmp slt i64 %v225, 0
  br i1 %v226, label %body223, label %end224
body223:
  %v227 = getelementptr float, ptr %v220, i64 %v225
  store float 0x0000000000000000, ptr %v227, align 4
  %v228 = add nsw i64 %v225, 1
  store i64 %v228, ptr %slot221
  br label %head222
end224:
  store i64 0, ptr %slot229
  br label %head230
head230:
  %v233 = load i64, ptr %slot229
  %v234 = icmp slt i64 %v233, 5
  br i1 %v234, label %body231, label %end232
body231:
  %v235 = icmp slt i64 %v233, 1
  %v236 = select i1 %v235, i64 %v233, i64 1
  %v237 = mul i64 %v236, 2
  %v238 = add i64 %v237, 0
  %v239 = getelementptr float, ptr %v218, i64 %v238
  %v240 = load <4 x float>, ptr %v239, align 4
  %v241 = add i64 %v238, 3
  %v242 = getelementptr float, ptr %v218, i64 %v241
  %v243 = load <4 x float>, ptr %v242, align 4
  %v244 = shufflevector <4 x float> %v240, <4 x float> %v243, <4 x i32> <i32 0, i32 2, i32 5, i32 7>
  %v245 = add i64 %v236, 0
  %v246 = getelementptr float, ptr %v220, i64 %v245
  store <4 x float> %v244, ptr %v246, align 4
  %v247 = add nsw i64 %v233, 4
  store i64 %v247, ptr %slot229
  br label %head230
end232:
  store i64 5, ptr %slot248
  br label %head249
head249:
  %v252 = load i64, ptr %slot248
  %v253 = icmp slt i64 %v252, 6
  br i1 %v253, label %body250, label %end251
body250:
  %v254 = getelementptr float, ptr %v220, i64 %v252
  store float 0x0000000000000000, ptr %v254, align 4
  %v255 = add nsw i64 %v252, 1
  store i64 %v255, ptr %slot248
  br label %head249
end251:
  %v256 = add nsw i64 %v213, 1
  store i64 %v256, ptr %slot209
  br label %head210
end212:
  store i64 30, ptr %slot257
  br label %head258
head258:
  %v261 = load i64, ptr %slot257
  %v262 = icmp slt i64 %v261, 36
  br i1 %v262, label %body259, label %end260
body259:
  %v263 = getelementptr float, ptr %v200, i64 %v261
  store float 0x0000000000000000, ptr %v263, align 4
  %v264 = add nsw i64 %v261, 1
  store i64 %v264, ptr %slot257
  br label %head258
end260:
  ret void
}

define void @spread_entry(ptr noalias %arguments, i64 %job, ptr noalias %scratch) nounwind {
entry:
  %v1 = getelementptr ptr, ptr %arguments, i64 0
  %v2 = load ptr, ptr %v1, align 8
  %v3 = getelementptr ptr, ptr %arguments, i64 1
  %v4 = load ptr, ptr %v3, align 8
  call void @spread(ptr %v2, ptr %v4, i64 %job, ptr %scratch)
  ret void
}
