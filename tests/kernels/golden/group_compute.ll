declare <4 x float> @llvm.fma.v4f32(<4 x float>, <4 x float>, <4 x float>)

define void @piece(ptr noalias %starts, ptr noalias %columns, ptr noalias %weights, i64 %tokens, ptr noalias %inputs, ptr noalias %outputs, i64 %image, i64 %start, i64 %first, i64 %last, i64 %block) nounwind {
entry:
  %slot2 = alloca i64
  %slot32 = alloca <4 x float>
  %slot36 = alloca <4 x float>
  %slot40 = alloca <4 x float>
  %slot44 = alloca <4 x float>
  %slot45 = alloca i64
  %slot100 = alloca <4 x float>
  %slot104 = alloca <4 x float>
  %slot108 = alloca <4 x float>
  %slot112 = alloca <4 x float>
  %slot113 = alloca i64
  %v1 = icmp eq i64 %block, 0
  store i64 %first, ptr %slot2
  br label %head3
head3:
  %v6 = load i64, ptr %slot2
  %v7 = icmp slt i64 %v6, %last
  br i1 %v7, label %body4, label %end5
body4:
  %v8 = udiv i64 %v6, 4
  %v9 = mul i64 %block, 7
  %v10 = add i64 %v9, %v8
  %v11 = getelementptr i32, ptr %starts, i64 %v10
  %v12 = getelementptr i32, ptr %v11, i64 0
  %v13 = load i32, ptr %v12, align 4
  %v14 = zext i32 %v13 to i64
  %v15 = getelementptr i32, ptr %v11, i64 1
  %v16 = load i32, ptr %v15, align 4
  %v17 = zext i32 %v16 to i64
  %v18 = sub i64 %v6, %first
  %v19 = mul i64 %v18, 8
  %v20 = getelementptr float, ptr %outputs, i64 %v19
  %v21 = icmp slt i64 %v14, %v17
  %v22 = or i1 %v1, %v21
  br i1 %v22, label %then23, label %join24
then23:
  %v25 = getelementptr float, ptr %v20, i64 0
  %v26 = getelementptr float, ptr %v20, i64 8
  %v27 = getelementptr float, ptr %v20, i64 16
  %v28 = getelementptr float, ptr %v20, i64 24
  %v29 = getelementptr float, ptr %v25, i64 0
  %v30 = load <4 x float>, ptr %v29, align 4
  %v31 = select i1 %v1, <4 x float> <float 0x0000000000000000, float 0x0000000000000000, float 0x0000000000000000, float 0x0000000000000000>, <4 x float> %v30
  store <4 x float> %v31, ptr %slot32
  %v33 = getelementptr float, ptr %v26, i64 0
  %v34 = load <4 x float>, ptr %v33, align 4
  %v35 = select i1 %v1, <4 x float> <float 0x0000000000000000, float 0x0000000000000000, float 0x0000000000000000, float 0x0000000000000000>, <4 x float> %v34
  store <4 x float> %v35, ptr %slot36
  %v37 = getelementptr float, ptr %v27, i64 0
  %v38 = load <4 x float>, ptr %v37, align 4
  %v39 = select i1 %v1, <4 x float> <float 0x0000000000000000, float 0x0000000000000000, float 0x0000000000000000, float 0x0000000000000000>, <4 x float> %v38
  store <4 x float> %v39, ptr %slot40
  %v41 = getelementptr float, ptr %v28, i64 0
  %v42 = load <4 x float>, ptr %v41, align 4
  %v43 = select i1 %v1, <4 x float> <float 0x0000000000000000, float 0x0000000000000000, float 0x0000000000000000, float 0x0000000000000000>, <4 x float> %v42
  store <4 x float> %v43, ptr %slot44
  store i64 %v14, ptr %slot45
  br label %head46
head46:
  %v49 = load i64, ptr %slot45
  %v50 = icmp slt i64 %v49, %v17
  br i1 %v50, label %body47, label %end48
body47:
  %v51 = getelementptr i16, ptr %columns, i64 %v49
  %v52 = load i16, ptr %v51, align 2
  %v53 = zext i16 %v52 to i64
  %v54 = mul i64 %v53, 8
  %v55 = getelementptr float, ptr %inputs, i64 %v54
  %v56 = mul i64 %v49, 4
  %v57 = getelementptr float, ptr %weights, i64 %v56
  %v58 = getelementptr float, ptr %v55, i64 0
  %v59 = load <4 x float>, ptr %v58, align 4
  %v60 = getelementptr float, ptr %v57, i64 0
  %v61 = load float, ptr %v60, align 4
  %v62 = insertelement <4 x float> poison, float %v61, i64 0
  %v63 = shufflevector <4 x float> %v62, <4 x float> poison, <4 x i32> zeroinitializer
  %v64 = load <4 x float>, ptr %slot32
  %v65 = call <4 x float> @llvm.fma.v4f32(<4 x float> %v63, <4 x float> %v59, <4 x float> %v64)
  store <4 x float> %v65, ptr %slot32
  %v66 = getelementptr float, ptr %v57, i64 1
  %v67 = load float, ptr %v66, align 4
  %v68 = insertelement <4 x float> poison, float %v67, i64 0
  %v69 = shufflevector <4 x float> %v68, <4 x float> poison, <4 x i32> zeroinitializer
  %v70 = load <4 x float>, ptr %slot36
  %v71 = call <4 x float> @llvm.fma.v4f32(<4 x float> %v69, <4 x float> %v59, <4 x float> %v70)
  store <4 x float> %v71, ptr %slot36
  %v72 = getelementptr float, ptr %v57, i64 2
  %v73 = load float, ptr %v72, align 4
  %v74 = insertelement <4 x float> poison, float %v73, i64 0
  %v75 = shufflevector <4 x float> %v74, <4 x float> poison, <4 x i32> zeroinitializer
  %v76 = load <4 x float>, ptr %slot40
  %v77 = call <4 x float> @llvm.fma.v4f32(<4 x float> %v75, <4 x float> %v59, <4 x float> %v76)
  store <4 x float> %v77, ptr %slot40
  %v78 = getelementptr float, ptr %v57, i64 3
  %v79 = load float, ptr %v78, align 4
  %v80 = insertelement <4 x float> poison, float %v79, i64 0
  %v81 = shufflevector <4 x float> %v80, <4 x float> poison, <4 x i32> zeroinitializer
  %v82 = load <4 x float>, ptr %slot44
  %v83 = call <4 x float> @llvm.fma.v4f32(<4 x float> %v81, <4 x float> %v59, <4 x float> %v82)
  store <4 x float> %v83, ptr %slot44
  %v84 = add nsw i64 %v49, 1
  store i64 %v84, ptr %slot45
  br label %head46
end48:
  %v85 = load <4 x float>, ptr %slot32
  %v86 = getelementptr float, ptr %v25, i64 0
  store <4 x float> %v85, ptr %v86, align 4
  %v87 = load <4 x float>, ptr %slot36
  %v88 = getelementptr float, ptr %v26, i64 0
  store <4 x float> %v87, ptr %v88, align 4
  %v89 = load <4 x float>, ptr %slot40
  %v90 = getelementptr float, ptr %v27, i64 0
  store <4 x float> %v89, ptr %v90, align 4
  %v91 = load <4 x float>, ptr %slot44
  %v92 = getelementptr float, ptr %v28, i64 0
  store <4 x float> %v91, ptr %v92, align 4
  %v93 = getelementptr float, ptr %v20, i64 0
  %v94 = getelementptr float, ptr %v20, i64 8
  %v95 = getelementptr float, ptr %v20, i64 16
  %v96 = getelementptr float, ptr %v20, i64 24
  %v97 = getelementptr float, ptr %v93, i64 4
  %v98 = load <4 x float>, ptr %v97, align 4
  %v99 = select i1 %v1, <4 x float> <float 0x0000000000000000, float 0x0000000000000000, float 0x0000000000000000, float 0x0000000000000000>, <4 x float> %v98
  store <4 x float> %v99, ptr %slot100
  %v101 = getelementptr float, ptr %v94, i64 4
  %v102 = load <4 x float>, ptr %v101, align 4
  %v103 = select i1 %v1, <4 x float> <float 0x0000000000000000, float 0x0000000000000000, float 0x0000000000000000, float 0x0000000000000000>, <4 x float> %v102
  store <4 x float> %v103, ptr %slot104
  %v105 = getelementptr float, ptr %v95, i64 4
  %v106 = load <4 x float>, ptr %v105, align 4
  %v107 = select i1 %v1, <4 x float> <float 0x0000000000000000, float 0x0000000000000000, float 0x0000000000000000, float 0x0000000000000000>, <4 x float> %v106
  store <4 x float> %v107, ptr %slot108
  %v109 = getelementptr float, ptr %v96, i64 4
  %v110 = load <4 x float>, ptr %v109, align 4
  %v111 = select i1 %v1, <4 x float> <float 0x0000000000000000, float 0x0000000000000000, float 0x0000000000000000, float 0x0000000000000000>, <4 x float> %v110
  store <4 x float> %v111, ptr %slot112
  store i64 %v14, ptr %slot113
  br label %head114
head114:
  %v117 = load i64, ptr %slot113
  %v118 = icmp slt i64 %v117, %v17
  br i1 %v118, label %body115, label %end116
body115:
  %v119 = getelementptr i16, ptr %columns, i64 %v117
  %v120 = load i16, ptr %v119, align 2
  %v121 = zext i16 %v120 to i64
  %v122 = mul i64 %v121, 8
  %v123 = getelementptr float, ptr %inputs, i64 %v122
  %v124 = mul i64 %v117, 4
  %v125 = getelementptr float, ptr %weights, i64 %v124
  %v126 = getelementptr float, ptr %v123, i64 4
  %v127 = load <4 x float>, ptr %v126, align 4
  %v128 = getelementptr float, ptr %v125, i64 0
  %v129 = load float, ptr %v128, align 4
  %v130 = insertelement <4 x float> poison, float %v129, i64 0
  %v131 = shufflevector <4 x float> %v130, <4 x float> poison, <4 x i32> zeroinitializer
  %v132 = load <4 x float>, ptr %slot100
  %v133 = call <4 x float> @llvm.fma.v4f32(<4 x float> %v131, <4 x float> %v127, <4 x float> %v132)
  store <4 x float> %v133, ptr %slot100
  %v134 = getelementptr float, ptr %v125, i64 1
  %v135 = load float, ptr %v134, align 4
  %v136 = insertelement <4 x float> poison, float %v135, i64 0
  %v137 = shufflevector <4 x float> %v136, <4 x float> poison, <4 x i32> zeroinitializer
  %v138 = load <4 x float>, ptr %slot104
  %v139 = call <4 x float> @llvm.fma.v4f32(<4 x float> %v137, <4 x float> %v127, <4 x float> %v138)
  store <4 x float> %v139, ptr %slot104
  %v140 = getelementptr float, ptr %v125, i64 2
  %v141 = load float, ptr %v140, align 4
  %v142 = insertelement <4 x float> poison, float %v141, i64 0
  %v143 = shufflevector <4 x float> %v142, <4 x float> poison, <4 x i32> zeroinitializer
  %v144 = load <4 x float>, ptr %slot108
  %v145 = call <4 x float> @llvm.fma.v4f32(<4 x float> %v143, <4 x float> %v127, <4 x float> %v144)
  store <4 x float> %v145, ptr %slot108
  %v146 = getelementptr float, ptr %v125, i64 3
  %v147 = load float, ptr %v146, align 4
  %v148 = insertelement <4 x float> poison, float %v147, i64 0
  %v149 = shufflevector <4 x float> %v148, <4 x float> poison, <4 x i32> zeroinitializer
  %v150 = load <4 x float>, ptr %slot112
  %v151 = call <4 x float> @llvm.fma.v4f32(<4 x float> %v149, <4 x float> %v127, <4 x float> %v150)
  store <4 x float> %v151, ptr %slot112
  %v152 = add nsw i64 %v117, 1
  store i64 %v152, ptr %slot113
  br label %head114
end116:
  %v153 = load <4 x float>, ptr %slot100
  %v154 = getelementptr float, ptr %v93, i64 4
  store <4 x float> %v153, ptr %v154, align 4
  %v155 = load <4 x float>, ptr %slot104
  %v156 = getelementptr float, ptr %v94, i64 4
  store <4 x float> %v155, ptr %v156, align 4
  %v157 = load <4 x float>, ptr %slot108
  %v158 = getelementptr float, ptr %v95, i64 4
  store <4 x float> %v157, ptr %v158, align 4
  %v159 = load <4 x float>, ptr %slot112
  %v160 = getelementptr float, ptr %v96, i64 4
  store <4 x float> %v159, ptr %v160, align 4
  br label %join24
join24:
  %v161 = add nsw i64 %v6, 4
  store i64 %v161, ptr %slot2
  br label %head3
end5:
  ret void
}
